package proof

import (
	"context"
	"errors"
	"net"
	"sync"
	"syscall"
	"time"
)

// Line is what a replica's connections to one server go through, so that they can be broken. It stands below TLS and knows the addresses that a server
// advertises, which a proxy in front of it would not. It is safe for concurrent use.
type Line struct {
	mu    sync.Mutex
	conns map[*lineConn]struct{}
	down  bool
}

// errDown is what a dial gets while the line is cut.
var errDown = &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}

// Dial connects, unless the line is cut.
func (l *Line) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	if l.isDown() {
		return nil, errDown
	}
	inner, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down {
		return nil, errors.Join(errDown, inner.Close())
	}
	c := &lineConn{Conn: inner, line: l}
	if l.conns == nil {
		l.conns = map[*lineConn]struct{}{}
	}
	l.conns[c] = struct{}{}
	return c, nil
}

func (l *Line) isDown() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.down
}

// Break resets all connections, as a network or a server that fails does: what is on its way is lost, both ends see it. It returns how many there were.
func (l *Line) Break() int {
	l.mu.Lock()
	conns := l.conns
	l.conns = nil
	l.mu.Unlock()
	for c := range conns {
		c.reset()
	}
	return len(conns)
}

// Cut breaks all connections and refuses new ones for the time d.
func (l *Line) Cut(d time.Duration) {
	l.set(true)
	l.Break()
	time.AfterFunc(d, func() { l.set(false) })
}

func (l *Line) set(down bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = down
}

// lineConn is one connection. Its errors after a break are those of a peer that reset it, not of a connection that was closed here.
type lineConn struct {
	net.Conn
	line   *Line
	mu     sync.Mutex
	broken bool
}

func (c *lineConn) reset() {
	c.mu.Lock()
	c.broken = true
	c.mu.Unlock()
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // the server gets a reset, too
	}
	_ = c.Conn.Close()
}

// seen turns the error of a connection that was broken here into what its user would see.
func (c *lineConn) seen(op string, err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil || !c.broken {
		return err
	}
	return &net.OpError{Op: op, Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: syscall.ECONNRESET}
}

func (c *lineConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	return n, c.seen("read", err)
}

func (c *lineConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	return n, c.seen("write", err)
}

func (c *lineConn) Close() error {
	c.line.mu.Lock()
	delete(c.line.conns, c)
	c.line.mu.Unlock()
	err := c.Conn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken { // it was closed before
		return nil
	}
	return err
}
