package sqlcore

import (
	"cmp"
	"context"
	"time"

	"github.com/oncemill/oncemill/middleware/keystore"
)

// DefaultLockTimeout bounds the wait for a rival's lock where nobody asked for another bound.
const DefaultLockTimeout = 3 * time.Second

// Core is one database as the stores of its parts see it. Safe for concurrent use.
type Core struct {
	dialect  Dialect
	sender   Sender
	caps     keystore.Capabilities
	outgoing *signal
	parked   *signal
	onCommit func()
	onWatch  func()
	outside  string
}

// Options set up a Core.
type Options struct {
	Capabilities keystore.Capabilities
	// OnOutgoing is called after a commit with outgoing records, to tell other processes. It must not block.
	OnOutgoing func()
	// OnWatch is called when somebody asks for wake-ups, so that it can begin to hear other processes. It must not block, and may be called often.
	OnWatch func()
	// Outbox is how a transaction of somebody else's, which may search other schemas, names the outbox. Defaults to "outbox".
	Outbox string
}

// New makes the core of a store.
func New(d Dialect, s Sender, opts Options) *Core {
	c := &Core{dialect: d, sender: s, caps: opts.Capabilities, outgoing: newSignal(), parked: newSignal(), onCommit: opts.OnOutgoing, onWatch: opts.OnWatch, outside: cmp.Or(opts.Outbox, "outbox")}
	if c.onCommit == nil {
		c.onCommit = func() {}
	}
	if c.onWatch == nil {
		c.onWatch = func() {}
	}
	return c
}

// Keys is the store of keys.
func (c *Core) Keys() *Keys { return &Keys{c} }

// Outbox is the relay's side of the outbox.
func (c *Core) Outbox() *Outbox { return &Outbox{c} }

// Parking is the store of parked messages.
func (c *Core) Parking() *Parking { return &Parking{c} }

// WakeRelay tells the relay of this process that records may have become due.
func (c *Core) WakeRelay() { c.outgoing.raise() }

// committed tells the loops of this process, and through OnOutgoing those of others, what a commit left for them.
func (c *Core) committed(outgoing, parked bool) {
	if outgoing {
		c.outgoing.raise()
		c.onCommit()
	}
	if parked {
		c.parked.raise()
	}
}

// inTx runs f in a transaction that f's error rolls back.
func (c *Core) inTx(ctx context.Context, f func(Session) error) error {
	s, err := c.sender.Begin(ctx, keystore.TxOptions{})
	if err != nil {
		return err
	}
	defer func() { _ = s.Rollback() }()
	if err := f(s); err != nil {
		return err
	}
	return s.Commit(ctx)
}

// signal is a coalesced wake-up.
type signal struct{ ch chan struct{} }

func newSignal() *signal { return &signal{make(chan struct{}, 1)} }

func (s *signal) raise() {
	select {
	case s.ch <- struct{}{}:
	default:
	}
}
