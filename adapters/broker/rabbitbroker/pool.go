package rabbitbroker

import (
	"context"
	"fmt"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	// poolSize bounds the channels that publish at once.
	poolSize = 16
	// chunk bounds the unconfirmed messages of a channel; their returns fit into its buffer.
	chunk = 256
)

// channel is an AMQP channel in confirm mode; one publish uses it at a time.
type channel struct {
	*amqp.Channel
	// returns holds what came back unroutable. The client puts a return into it before it handles the
	// confirm behind it, so after the confirm it is there.
	returns chan amqp.Return
	lost    chan *amqp.Error
	reason  error           // what lost gave
	ready   map[string]bool // topics whose exchange and queues were declared on this channel
}

// pool keeps channels of the publishing connection. A channel that had any trouble is not given back:
// the next publish opens a new one, on a new connection where need be.
type pool struct {
	link  *link
	slots chan struct{}

	mu   sync.Mutex
	idle []*channel
}

func newPool(l *link) *pool { return &pool{link: l, slots: make(chan struct{}, poolSize)} }

// take returns a channel; the caller must call release with it, or with nil to drop it.
func (p *pool) take(ctx context.Context) (*channel, error) {
	select {
	case p.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	for {
		c := p.pop()
		if c == nil {
			break
		}
		if !c.IsClosed() {
			return c, nil
		}
	}
	c, err := p.open(ctx)
	if err != nil {
		<-p.slots
	}
	return c, err
}

func (p *pool) pop() *channel {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.idle) == 0 {
		return nil
	}
	c := p.idle[len(p.idle)-1]
	p.idle = p.idle[:len(p.idle)-1]
	return c
}

func (p *pool) release(c *channel) {
	if c != nil && !c.IsClosed() {
		p.mu.Lock()
		p.idle = append(p.idle, c)
		p.mu.Unlock()
	}
	<-p.slots
}

func (p *pool) open(ctx context.Context) (*channel, error) {
	conn, _, err := p.link.get(ctx)
	if err != nil {
		return nil, notConnected(ctx, err)
	}
	ch, err := conn.Channel()
	if err != nil {
		return nil, fmt.Errorf("opening a channel: %w", err)
	}
	c := &channel{
		Channel: ch,
		returns: ch.NotifyReturn(make(chan amqp.Return, chunk)),
		lost:    ch.NotifyClose(make(chan *amqp.Error, 1)),
		ready:   map[string]bool{},
	}
	if err := ch.Confirm(false); err != nil {
		_ = ch.Close()
		return nil, fmt.Errorf("switching to confirms: %w", err)
	}
	return c, nil
}

// unroutable takes out what came back, by message id.
func (c *channel) unroutable() map[string]bool {
	var ids map[string]bool
	for {
		select {
		case r, open := <-c.returns:
			if !open {
				return ids
			}
			if ids == nil {
				ids = map[string]bool{}
			}
			ids[r.MessageId] = true
		default:
			return ids
		}
	}
}

// fault says why the channel is closed.
func (c *channel) fault() error {
	if c.reason != nil {
		return c.reason
	}
	c.reason = amqp.ErrClosed
	select {
	case err := <-c.lost:
		if err != nil {
			c.reason = err
		}
	default:
	}
	return c.reason
}
