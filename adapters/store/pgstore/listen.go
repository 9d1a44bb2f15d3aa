package pgstore

import (
	"context"
	"crypto/rand"
	"log/slog"
	mathrand "math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// channel is what all processes of a database listen on; the schema and the sender stand in the payload.
	channel = "oncemill_outbox"
	// notifyEvery bounds how often a process tells the others. NOTIFY takes a lock of the whole cluster when it commits, so
	// it never travels in a transaction that carries work.
	notifyEvery   = 20 * time.Millisecond
	notifyTimeout = 2 * time.Second
	listenAtFirst = 100 * time.Millisecond // before the second attempt to connect
	listenAtMost  = 10 * time.Second
)

// bell tells other processes that records left with a commit, and hears them tell. It is only a hint: whatever fails here, polling finds the records.
type bell struct {
	run     func(ctx context.Context, query string, args ...any) error
	connect func(ctx context.Context) (*pgx.Conn, error)
	heard   func()
	logger  *slog.Logger

	name    string // of this process, so that it does not wake itself
	rings   chan struct{}
	ctx     context.Context // of the two goroutines; ends with close
	stop    context.CancelFunc
	running sync.WaitGroup
	ringing sync.Once
	hearing sync.Once
}

func (b *bell) init() *bell {
	b.name, b.rings = rand.Text(), make(chan struct{}, 1)
	b.ctx, b.stop = context.WithCancel(context.Background())
	return b
}

// ring tells the others, soon. It never blocks.
func (b *bell) ring() {
	b.ringing.Do(func() { b.running.Go(b.notify) })
	select {
	case b.rings <- struct{}{}:
	default:
	}
}

// listen begins to hear others.
func (b *bell) listen() {
	b.hearing.Do(func() { b.running.Go(b.hear) })
}

// close ends both and waits for them.
func (b *bell) close() {
	b.stop()
	b.ringing.Do(func() {}) // nothing starts any more
	b.hearing.Do(func() {})
	b.running.Wait()
}

func (b *bell) notify() {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-b.ctx.Done():
			return
		case <-pause.C:
		}
		select {
		case <-b.ctx.Done():
			return
		case <-b.rings:
		}
		ctx, cancel := context.WithTimeout(b.ctx, notifyTimeout)
		if err := b.run(ctx, `SELECT pg_notify($1, current_schema() || '/' || $2::text)`, channel, b.name); err != nil {
			b.logger.Debug("other processes were not told of outgoing messages, they will find them by polling", slog.Any("err", err))
		}
		cancel()
		pause.Reset(notifyEvery)
	}
}

func (b *bell) hear() {
	wait := listenAtFirst
	for b.ctx.Err() == nil {
		began := time.Now()
		err := b.hearOnce()
		if b.ctx.Err() != nil {
			return
		}
		b.logger.Debug("not listening for outgoing messages of other processes, polling finds them", slog.Any("err", err))
		if time.Since(began) > listenAtMost {
			wait = listenAtFirst
		}
		select {
		case <-b.ctx.Done():
		case <-time.After(wait/2 + mathrand.N(wait/2)):
		}
		wait = min(2*wait, listenAtMost)
	}
}

func (b *bell) hearOnce() error {
	conn, err := b.connect(b.ctx)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), notifyTimeout)
		defer cancel()
		_ = conn.Close(ctx)
	}()
	var schema string
	if err := conn.QueryRow(b.ctx, `SELECT coalesce(current_schema(), '')`).Scan(&schema); err != nil {
		return err
	}
	if _, err := conn.Exec(b.ctx, `LISTEN `+channel); err != nil {
		return err
	}
	b.heard() // for what was told while nobody listened
	for {
		n, err := conn.WaitForNotification(b.ctx)
		if err != nil {
			return err
		}
		from, who, _ := strings.Cut(n.Payload, "/")
		if from == schema && who != b.name {
			b.heard()
		}
	}
}
