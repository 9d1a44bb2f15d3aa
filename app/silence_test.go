package app

import (
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// silence forwards TCP to a server until it is told to keep quiet: connections stay open, and nothing comes through.
type silence struct {
	listener net.Listener
	upstream string
	quiet    chan struct{} // closed by begin
	ended    chan struct{}
	running  sync.WaitGroup
}

// silenceTo forwards to upstream until the test ends.
func silenceTo(t *testing.T, upstream string) *silence {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &silence{listener: listener, upstream: upstream, quiet: make(chan struct{}), ended: make(chan struct{})}
	s.running.Go(s.accept)
	t.Cleanup(func() {
		close(s.ended)
		listener.Close()
		s.running.Wait()
	})
	return s
}

// begin ends all forwarding, for good.
func (s *silence) begin() { close(s.quiet) }

func (s *silence) accept() {
	for {
		client, err := s.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", s.upstream)
		if err != nil {
			client.Close()
			continue
		}
		s.running.Go(func() { s.forward(client, server) })
		s.running.Go(func() { s.forward(server, client) })
		s.running.Go(func() {
			<-s.ended
			client.Close()
			server.Close()
		})
	}
}

func (s *silence) forward(from, to net.Conn) {
	data := make([]byte, 32<<10)
	for {
		n, err := from.Read(data)
		select {
		case <-s.quiet:
			continueReading(from, err)
			return
		default:
		}
		if _, failed := to.Write(data[:n]); err != nil || failed != nil {
			to.Close()
			return
		}
	}
}

// continueReading takes what still comes, so that the sender does not notice.
func continueReading(from net.Conn, err error) {
	data := make([]byte, 32<<10)
	for err == nil {
		_, err = from.Read(data)
	}
}
