package natsbroker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/middleware/outbox"
)

const (
	// requestTimeout bounds one request to the server.
	requestTimeout = 5 * time.Second
	// publishTimeout is how long the server's confirmation is waited for at most.
	publishTimeout = 30 * time.Second
	dialTimeout    = 3 * time.Second
)

// errClosed is returned by what is used after Close of the broker.
var errClosed = errors.New("nats: broker is closed")

// link is one client connection that reconnects for ever, and tells when it is up and when it went down.
type link struct {
	nc     *nats.Conn
	js     jetstream.JetStream
	logger *slog.Logger

	mu      sync.Mutex
	up      bool
	current context.Context // ends at the next change of the connection
	end     context.CancelFunc
}

// connect opens a connection, and tries until ctx ends. api is what the subjects of JetStream's API begin with.
func connect(ctx context.Context, url, api string, slowest time.Duration, logger *slog.Logger, options ...nats.Option) (*link, error) {
	l := &link{logger: logger, up: true}
	l.current, l.end = context.WithCancel(context.Background())
	options = append(l.options(slowest), options...)
	for attempt := 1; ; attempt++ {
		nc, err := nats.Connect(url, options...)
		if err == nil {
			l.nc = nc
			break
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("connecting to NATS: %w (%w)", err, ctx.Err())
		case <-time.After(reconnectDelay(attempt, slowest)):
		}
	}
	js, err := jetstream.NewWithAPIPrefix(l.nc, api,
		jetstream.WithDefaultTimeout(requestTimeout),
		jetstream.WithPublishAsyncMaxPending(4*publishWindow),
		jetstream.WithPublishAsyncTimeout(publishTimeout))
	if err != nil {
		l.nc.Close()
		return nil, fmt.Errorf("opening JetStream: %w", err)
	}
	l.js = js
	return l, nil
}

func (l *link) options(slowest time.Duration) []nats.Option {
	return []nats.Option{
		nats.MaxReconnects(-1),
		// A refused login is tried again too: a password may be rotated at the server before it is here.
		nats.IgnoreAuthErrorAbort(),
		nats.CustomReconnectDelay(func(attempts int) time.Duration { return reconnectDelay(attempts, slowest) }),
		// Nothing is buffered while the connection is down: what was not sent is known not to be sent.
		nats.ReconnectBufSize(-1),
		nats.Timeout(dialTimeout),
		nats.PingInterval(10 * time.Second),
		nats.MaxPingsOutstanding(2),
		nats.FlusherTimeout(10 * time.Second),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) { l.changed(false, err) }),
		nats.ReconnectHandler(func(*nats.Conn) { l.changed(true, nil) }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			l.logger.Warn("nats connection reports an error", slog.Any("err", err))
		}),
	}
}

// reconnectDelay doubles up to slowest, with jitter, so that replicas do not come all at once.
func reconnectDelay(attempts int, slowest time.Duration) time.Duration {
	delay := slowest
	if attempts < 10 {
		delay = min(slowest, 20*time.Millisecond<<attempts)
	}
	return delay/2 + rand.N(delay/2)
}

func (l *link) changed(up bool, err error) {
	l.mu.Lock()
	l.up = up
	l.end()
	l.current, l.end = context.WithCancel(context.Background())
	l.mu.Unlock()
	switch {
	case up:
		l.logger.Info("nats connection is back")
	case err != nil:
		l.logger.Warn("nats connection lost", slog.Any("err", err))
	}
}

// state tells whether the connection is up, and returns a channel that closes when that changes.
func (l *link) state() (up bool, change <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.up && l.nc.IsConnected(), l.current.Done()
}

// during returns a context that ends with the connection too, for requests: their answer would never come.
func (l *link) during(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	l.mu.Lock()
	defer l.mu.Unlock()
	release := context.AfterFunc(l.current, cancel)
	return ctx, func() {
		release()
		cancel()
	}
}

// await waits until the connection is up.
func (l *link) await(ctx context.Context) error {
	for {
		up, change := l.state()
		if up {
			return nil
		}
		if l.nc.IsClosed() {
			return errClosed
		}
		select {
		case <-change:
		case <-ctx.Done():
			return fmt.Errorf("%w: no connection to NATS (%w)", outbox.ErrUnavailable, ctx.Err())
		// The client is connected a moment before its handler says so.
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// name tells one connection from another, for envelope.Delivery.Session.
func (l *link) name() string {
	id, _ := l.nc.GetClientID()
	return fmt.Sprintf("%s/%d", l.nc.ConnectedServerId(), id)
}

func (l *link) ping(ctx context.Context) error {
	if l.nc.IsClosed() {
		return errClosed
	}
	if _, err := l.js.AccountInfo(ctx); err != nil {
		return fmt.Errorf("asking JetStream: %w", err)
	}
	return nil
}

// close ends the connection and waits until it has.
func (l *link) close() {
	ended := l.nc.StatusChanged(nats.CLOSED)
	l.nc.Close()
	select {
	case <-ended:
	case <-time.After(time.Second):
	}
}
