package natsbroker

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
)

// address is where the embedded server listens, and the token that gives access to it: whoever can read the file may use the
// server, other users of the machine may not.
type address struct {
	Addr  string `json:"address"`
	Token string `json:"token"`
	// PID is the process that serves, for people.
	PID int `json:"pid"`
}

func addressPath(dir string) string { return filepath.Join(dir, "nats.address") }

// readAddress returns the zero address where there is none that can be read.
func readAddress(dir string) address {
	var a address
	data, err := os.ReadFile(addressPath(dir))
	if err != nil || json.Unmarshal(data, &a) != nil {
		return address{}
	}
	return a
}

// write replaces the file in one step.
func (a address) write(dir string) error {
	data, err := json.Marshal(a)
	if err != nil {
		return fmt.Errorf("writing the address: %w", err)
	}
	draft := addressPath(dir) + ".new"
	// A draft that somebody left behind may have other rights.
	if err := os.Remove(draft); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("writing the address: %w", err)
	}
	if err := os.WriteFile(draft, data, 0o600); err != nil {
		return fmt.Errorf("writing the address: %w", err)
	}
	if err := os.Rename(draft, addressPath(dir)); err != nil {
		return fmt.Errorf("writing the address: %w", err)
	}
	return nil
}

func (a address) port() int {
	_, text, err := net.SplitHostPort(a.Addr)
	if err != nil {
		return 0
	}
	port, _ := strconv.Atoi(text)
	return port
}

// token is kept over restarts, so that the processes around need not be told.
func (a address) token() string {
	if a.Token != "" {
		return a.Token
	}
	return rand.Text() + rand.Text()
}

// addressDialer connects to wherever the server listens now: it may have moved since the last connection.
type addressDialer struct {
	dir  string
	dial dialFunc // nil: TCP
}

// Dial implements nats.CustomDialer.
func (d addressDialer) Dial(network, _ string) (net.Conn, error) {
	a := readAddress(d.dir)
	if a.Addr == "" {
		return nil, errors.New("no process serves the data folder yet")
	}
	if d.dial != nil {
		return d.dial.Dial(network, a.Addr)
	}
	dialer := net.Dialer{Timeout: dialTimeout}
	return dialer.Dial(network, a.Addr)
}
