package rabbitbroker

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/oncemill/oncemill/adapters/broker"
)

var errClosed = errors.New("the broker is closed")

const (
	backoffFirst = 100 * time.Millisecond
	backoffMax   = 5 * time.Second
	closeWithin  = 5 * time.Second
)

// link is a connection that is opened again when it was lost. Publishing and consuming have one each, so that a
// broker that holds back publishers does not hold back acks.
type link struct {
	cfg  Config
	opts broker.Options
	name string
	log  *slog.Logger

	// turn is held by who reads or changes the fields below; as a channel, so that waiting ends with a context.
	turn    chan struct{}
	conn    *amqp.Connection
	alarm   *alarm
	pause   time.Duration
	next    time.Time // no attempt before
	closed  bool
	ctx     context.Context // ends with close
	cancel  context.CancelFunc
	watches sync.WaitGroup
}

func newLink(cfg Config, opts broker.Options, name string, log *slog.Logger) *link {
	l := &link{cfg: cfg, opts: opts, name: name, log: log, turn: make(chan struct{}, 1)}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

// get returns the living connection, or makes one attempt to open it. Attempts of
// all callers together are spaced by a backoff.
func (l *link) get(ctx context.Context) (*amqp.Connection, *alarm, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.ctx, cancel)()
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return nil, nil, l.ended(ctx)
	}
	if l.closed {
		return nil, nil, errClosed
	}
	if l.conn != nil && !l.conn.IsClosed() {
		return l.conn, l.alarm, nil
	}
	if err := sleep(ctx, time.Until(l.next)); err != nil {
		return nil, nil, l.ended(ctx)
	}
	conn, err := l.cfg.dial(ctx, l.opts, l.name)
	if err != nil {
		if l.ctx.Err() != nil {
			return nil, nil, errClosed
		}
		l.pause = min(max(2*l.pause, backoffFirst), backoffMax)
		l.next = time.Now().Add(jitter(l.pause))
		return nil, nil, err
	}
	l.conn, l.alarm, l.pause, l.next = conn, newAlarm(), 0, time.Now().Add(backoffFirst)
	l.watch(conn, l.alarm)
	return conn, l.alarm, nil
}

func (l *link) ended(ctx context.Context) error {
	if l.ctx.Err() != nil {
		return errClosed
	}
	return ctx.Err()
}

// watch follows the broker's alarm and logs the connection's end.
func (l *link) watch(conn *amqp.Connection, a *alarm) {
	blocked := conn.NotifyBlocked(make(chan amqp.Blocking, 1))
	lost := conn.NotifyClose(make(chan *amqp.Error, 1))
	l.watches.Go(func() {
		defer a.set(false)
		for blocking := range blocked {
			a.set(blocking.Active)
			if blocking.Active {
				l.log.Warn("rabbitmq holds back publishers", "reason", blocking.Reason)
				continue
			}
			l.log.Info("rabbitmq takes messages again")
		}
		if err := <-lost; err != nil {
			l.log.Warn("rabbitmq connection lost", "connection", l.name, "err", err)
		}
	})
}

// close closes the connection for good. Safe to call twice.
func (l *link) close() {
	l.cancel()
	l.turn <- struct{}{}
	if l.conn != nil && !l.closed {
		// An error says that the connection was lost before.
		_ = l.conn.CloseDeadline(time.Now().Add(closeWithin))
	}
	l.closed = true
	<-l.turn
	l.watches.Wait()
}

// alarm tells whether the broker holds back publishers (connection.blocked).
type alarm struct {
	mu    sync.Mutex
	clear chan struct{} // closed while there is no alarm
}

func newAlarm() *alarm {
	a := &alarm{clear: make(chan struct{})}
	close(a.clear)
	return a
}

func (a *alarm) set(active bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	select {
	case <-a.clear:
		if active {
			a.clear = make(chan struct{})
		}
	default:
		if !active {
			close(a.clear)
		}
	}
}

// wait returns when there is no alarm, or ctx ends.
func (a *alarm) wait(ctx context.Context) error {
	a.mu.Lock()
	clear := a.clear
	a.mu.Unlock()
	select {
	case <-clear:
		return nil
	default:
	}
	select {
	case <-clear:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// jitter returns d, up to a quarter less.
func jitter(d time.Duration) time.Duration { return d - rand.N(d/4+1) }
