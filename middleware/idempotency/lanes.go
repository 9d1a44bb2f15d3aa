package idempotency

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/middleware/envelope"
)

// errHandBack says that the message must go back to its broker unrun.
var errHandBack = errors.New("handed back to the broker")

// Lanes keeps the order of ordering keys within a process. Watermill's router starts a
// goroutine for each message, which loses the order of arrival; so Lanes decorates the subscriber and
// gives each message with an ordering key a ticket before that. Messages of one key take turns in the order of their
// tickets. A ticket ends with its message's Ack or Nack, whoever calls it.
type Lanes struct {
	mu    sync.Mutex
	keys  map[string]*lane
	swept time.Time
}

// lane is the queue of one ordering key.
type lane struct {
	queue []*ticket
	// returning is the message that was handed back; until it returns its successors are handed back too.
	returning string
	since     time.Time
}

type ticket struct {
	key   string
	id    string
	turn  chan struct{} // closed when it is this ticket's turn, or it must go back
	goes  bool          // closed
	unrun bool          // must be handed back
}

// returnPatience bounds how long successors wait for a message that was handed back and may
// have gone to another replica.
const returnPatience = 30 * time.Second

// NewLanes returns empty lanes, for one binding.
func NewLanes() *Lanes { return &Lanes{keys: map[string]*lane{}} }

type ticketKey struct{}

// Subscriber decorates sub: messages get their tickets in the order in which sub delivers them.
func (l *Lanes) Subscriber(sub message.Subscriber) message.Subscriber {
	return &laneSubscriber{lanes: l, inner: sub}
}

type laneSubscriber struct {
	lanes  *Lanes
	inner  message.Subscriber
	active sync.WaitGroup
}

// Subscribe is message.Subscriber's.
func (s *laneSubscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	in, err := s.inner.Subscribe(ctx, topic)
	if err != nil {
		return nil, err
	}
	out := make(chan *message.Message)
	s.active.Go(func() {
		defer close(out)
		for msg := range in {
			s.admit(msg)
			out <- msg // the router reads until the channel is closed
		}
	})
	return out, nil
}

func (s *laneSubscriber) admit(msg *message.Message) {
	key := msg.Metadata.Get(envelope.OrderingKeyHeader)
	if key == "" {
		return
	}
	t := s.lanes.take(key, msg.UUID)
	msg.SetContext(context.WithValue(msg.Context(), ticketKey{}, t))
	s.active.Go(func() {
		select {
		case <-msg.Acked():
			s.lanes.end(t, false)
		case <-msg.Nacked():
			s.lanes.end(t, true)
		}
	})
}

// Close is message.Subscriber's; it waits until every ticket has ended.
func (s *laneSubscriber) Close() error {
	err := s.inner.Close()
	s.active.Wait()
	return err
}

func (l *Lanes) take(key, id string) *ticket {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := &ticket{key: key, id: id, turn: make(chan struct{})}
	ln := l.keys[key]
	if ln == nil {
		ln = &lane{}
		l.keys[key] = ln
	}
	if ln.returning != "" {
		if ln.returning == id || time.Since(ln.since) > returnPatience {
			ln.returning = ""
		} else {
			t.unrun = true
		}
	}
	ln.queue = append(ln.queue, t)
	if t.unrun || ln.queue[0] == t {
		t.let()
	}
	return t
}

func (t *ticket) let() {
	if !t.goes {
		t.goes = true
		close(t.turn)
	}
}

// end removes a ticket and gives its successor the turn. What was handed back takes everything behind it along.
func (l *Lanes) end(t *ticket, handedBack bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ln := l.keys[t.key]
	at := 0
	for at < len(ln.queue) && ln.queue[at] != t {
		at++
	}
	if handedBack && !t.unrun {
		l.sweep()
		ln.returning, ln.since = t.id, time.Now()
		for _, later := range ln.queue[at+1:] {
			later.unrun = true
			later.let()
		}
	}
	ln.queue = append(ln.queue[:at], ln.queue[at+1:]...)
	if len(ln.queue) > 0 {
		ln.queue[0].let()
	} else if ln.returning == "" {
		delete(l.keys, t.key)
	}
}

// sweep forgets keys whose message was handed back and has returned elsewhere. The caller holds mu.
func (l *Lanes) sweep() {
	if time.Since(l.swept) < returnPatience {
		return
	}
	l.swept = time.Now()
	for key, ln := range l.keys {
		if len(ln.queue) == 0 && time.Since(ln.since) > returnPatience {
			delete(l.keys, key)
		}
	}
}

// awaitTurn waits for the turn of the message that carries ctx. Messages without a ticket have it at once.
func awaitTurn(ctx context.Context) error {
	t, ok := ctx.Value(ticketKey{}).(*ticket)
	if !ok {
		return nil
	}
	select {
	case <-t.turn:
		if t.unrun {
			return errHandBack
		}
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
