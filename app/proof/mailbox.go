package proof

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/mail"
	"strings"
	"sync"
	"time"

	"github.com/emersion/go-smtp"
)

// Mailbox is a mail server that takes every letter of a trial and remembers its Message-ID, each time that it comes. Now and then it has an accident: it takes
// a letter and says nothing.
type Mailbox struct {
	server   *smtp.Server
	listener net.Listener
	served   chan error

	mu      sync.Mutex
	letters []taken
	silent  func() bool // whether the answer to the next letter is lost
}

// taken is one letter that came.
type taken struct {
	id string
	at time.Time
}

// OpenMailbox listens on a free port of this machine.
func OpenMailbox() (*Mailbox, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("open the mailbox: %w", err)
	}
	m := &Mailbox{listener: l, served: make(chan error, 1)}
	m.server = smtp.NewServer(smtp.BackendFunc(func(c *smtp.Conn) (smtp.Session, error) { return &conversation{m: m, conn: c}, nil }))
	m.server.ErrorLog = log.New(io.Discard, "", 0) // connections break here on purpose
	m.server.Domain, m.server.ReadTimeout, m.server.WriteTimeout = "localhost", time.Minute, time.Minute
	go func() { m.served <- m.server.Serve(l) }()
	return m, nil
}

// Port is where it listens, on 127.0.0.1.
func (m *Mailbox) Port() int { return m.listener.Addr().(*net.TCPAddr).Port }

// Close ends it.
func (m *Mailbox) Close() error {
	err := m.server.Close()
	<-m.served
	return err
}

// lose sets when an answer is lost; nil is never.
func (m *Mailbox) lose(when func() bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.silent = when
}

func (m *Mailbox) all() []taken {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.letters[:len(m.letters):len(m.letters)]
}

// take remembers a letter and reports whether it is answered.
func (m *Mailbox) take(id string) (answered bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.letters = append(m.letters, taken{id, time.Now()})
	return m.silent == nil || !m.silent()
}

// conversation is one connection.
type conversation struct {
	m    *Mailbox
	conn *smtp.Conn
}

func (c *conversation) Mail(string, *smtp.MailOptions) error { return nil }
func (c *conversation) Rcpt(string, *smtp.RcptOptions) error { return nil }
func (c *conversation) Reset()                               {}
func (c *conversation) Logout() error                        { return nil }

func (c *conversation) Data(r io.Reader) error {
	data, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	letter, err := mail.ReadMessage(bytes.NewReader(data))
	if err != nil {
		return fmt.Errorf("read a letter: %w", err)
	}
	id, _, _ := strings.Cut(strings.Trim(letter.Header.Get("Message-Id"), "<>"), "@")
	if !c.m.take(id) {
		return errors.Join(errors.New("the answer is lost"), c.conn.Conn().Close())
	}
	return nil
}
