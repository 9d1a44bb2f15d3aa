package natsbroker

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// pullExpiry ends a request at the server when its client no longer asks; it is asked again then.
	pullExpiry = 30 * time.Second
	// pullExpiryOrdered is short, so that the request of a former lease holder does not stay behind for long.
	pullExpiryOrdered = 2 * time.Second
	// pullHeartbeat is how often the server says that a request without messages is alive.
	pullHeartbeat = 5 * time.Second
	// pullBytes bounds what one request brings: a server drops a client for which more than 64 MiB pile up.
	pullBytes = 8 << 20
)

// errPullSilent ends a pull whose request the server forgot: no heartbeat comes any more.
var errPullSilent = errors.New("no heartbeat from the server")

// pull asks a consumer for messages by one inbox, and counts exactly what is still to
// come. The client library's own iterators fetch ahead of their reader, into a buffer
// where nothing keeps a delivery alive and no bound of messages in flight reaches.
type pull struct {
	nc      *nats.Conn
	inbox   string
	subject string
	sub     *nats.Subscription
	expiry  time.Duration
	bytes   int // most of one request
	deliver func(*nats.Msg)
	gone    chan struct{} // closed when the inbox is

	// changed gets a value when requests ended.
	changed chan struct{}
	// failed gets the error that ends the pull.
	failed chan error

	mu     sync.Mutex
	asked  int // messages still to come
	number int
	heard  time.Time
	large  bool // the next message is larger than a request may bring
	empty  bool // the server had nothing for a request without waiting
}

// newPull opens the inbox. deliver is called for one message after the other.
func newPull(nc *nats.Conn, api, stream, durable string, expiry time.Duration, deliver func(*nats.Msg)) (*pull, error) {
	p := &pull{
		nc: nc, inbox: nc.NewInbox(), expiry: expiry, deliver: deliver,
		subject: fmt.Sprintf("%s.CONSUMER.MSG.NEXT.%s.%s", api, stream, durable),
		gone:    make(chan struct{}), changed: make(chan struct{}, 1), failed: make(chan error, 1),
		heard: time.Now(),
	}
	sub, err := nc.Subscribe(p.inbox+".*", p.receive)
	if err != nil {
		return nil, fmt.Errorf("opening an inbox: %w", err)
	}
	p.sub = sub
	// What may come is bounded by what was asked for.
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		_ = sub.Unsubscribe()
		return nil, fmt.Errorf("opening an inbox: %w", err)
	}
	sub.SetClosedHandler(func(string) { close(p.gone) })
	return p, nil
}

// pullRequest is the body of a request for messages.
type pullRequest struct {
	Batch     int           `json:"batch"`
	Expires   time.Duration `json:"expires,omitempty"`
	Heartbeat time.Duration `json:"idle_heartbeat,omitempty"`
	NoWait    bool          `json:"no_wait,omitempty"`
	MaxBytes  int           `json:"max_bytes,omitempty"`
}

// ask requests n more messages; with noWait only those that the server can hand out at once. It may ask
// for fewer, and the end of the request tells.
func (p *pull) ask(n int, noWait bool) error {
	reply, request := p.next(n, noWait)
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	if err := p.nc.PublishRequest(p.subject, reply, body); err != nil {
		return fmt.Errorf("asking for messages: %w", err)
	}
	return nil
}

func (p *pull) next(n int, noWait bool) (reply string, request pullRequest) {
	p.mu.Lock()
	defer p.mu.Unlock()
	request = pullRequest{Batch: n, NoWait: noWait, MaxBytes: p.bytes}
	if !noWait {
		request.Expires = p.expiry
		request.Heartbeat = min(pullHeartbeat, p.expiry/2)
	}
	if p.large {
		request.Batch, request.MaxBytes, p.large = 1, 0, false
	}
	if p.asked == 0 {
		p.heard = time.Now()
	}
	p.number++
	reply = fmt.Sprintf("%s.%d-%d", p.inbox, p.number, request.Batch)
	p.asked += request.Batch
	p.empty = false
	return reply, request
}

// outstanding is how many messages may still come.
func (p *pull) outstanding() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked
}

// exhausted reports that the last request, one without waiting, was answered by "no messages".
func (p *pull) exhausted() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.empty
}

// silent reports that requests are open, and the server says nothing about them.
func (p *pull) silent() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked > 0 && time.Since(p.heard) > 3*min(pullHeartbeat, p.expiry/2)
}

func (p *pull) receive(m *nats.Msg) {
	if status := m.Header.Get("Status"); status != "" && m.Reply == "" {
		p.status(m, status)
		return
	}
	p.mu.Lock()
	p.heard = time.Now()
	p.asked = max(0, p.asked-1)
	p.mu.Unlock()
	p.deliver(m)
}

// status takes what the server says about a request. Only the end of a request that says how much of it
// is left (its time or its bytes are used up), and an empty answer, leave the count exact; everything else ends the pull.
func (p *pull) status(m *nats.Msg, status string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.heard = time.Now()
	reason := m.Header.Get("Description")
	left, err := strconv.Atoi(m.Header.Get("Nats-Pending-Messages"))
	switch {
	case status == "100":
		return
	case status == "404" || status == "408" && err != nil:
		// The answer to a request without waiting, which is the only one then.
		p.empty = status == "404"
		p.asked = 0
	case status == "408", status == "409" && reason == "Batch Completed":
		p.asked = max(0, p.asked-left)
	case status == "409" && reason == "Message Size Exceeds MaxBytes":
		p.large = strings.HasSuffix(m.Subject, "-"+strconv.Itoa(left)) // it brought nothing
		p.asked = max(0, p.asked-left)
	default:
		p.fail(fmt.Errorf("the server ended the request: %s %s", status, reason))
		return
	}
	p.signal()
}

func (p *pull) signal() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

func (p *pull) fail(err error) {
	select {
	case p.failed <- err:
	default:
	}
}

// close stops the requests, and returns when everything that the server sent before was delivered.
func (p *pull) close() {
	if !p.nc.IsConnected() || p.sub.Drain() != nil {
		_ = p.sub.Unsubscribe()
	}
	select {
	case <-p.gone:
	case <-time.After(requestTimeout):
		_ = p.sub.Unsubscribe()
	}
}
