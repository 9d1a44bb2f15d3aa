package sqlbroker

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"
)

const (
	// notifyEvery coalesces notifications: those of one process to the others are at least so far apart.
	notifyEvery   = 10 * time.Millisecond
	notifyTimeout = 5 * time.Second
	listenAtFirst = 100 * time.Millisecond
	listenAtMost  = 5 * time.Second
)

// bell tells other processes of new messages, and hears them. It only makes things faster: polling finds everything.
type bell struct {
	server server
	heard  func(topic string)
	logger *slog.Logger
	rung   chan struct{}

	mu     sync.Mutex
	topics map[string]bool // to tell of
}

func newBell(s server, heard func(string), logger *slog.Logger) *bell {
	return &bell{server: s, heard: heard, logger: logger, rung: make(chan struct{}, 1), topics: map[string]bool{}}
}

// ring wakes the subscribers here, and tells the others soon. It never blocks.
func (b *bell) ring(topic string) {
	b.heard(topic)
	b.mu.Lock()
	b.topics[topic] = true
	b.mu.Unlock()
	signal(b.rung)
}

func (b *bell) notify(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-b.rung:
		}
		b.mu.Lock()
		topics := make([]string, 0, len(b.topics))
		for topic := range b.topics {
			topics = append(topics, topic)
		}
		clear(b.topics)
		b.mu.Unlock()
		asking, cancel := context.WithTimeout(ctx, notifyTimeout)
		if err := b.server.notify(asking, topics); err != nil {
			b.logger.Debug("other processes were not told of messages, they will find them by polling", slog.Any("err", err))
		}
		cancel()
		if sleep(ctx, notifyEvery) != nil {
			return
		}
	}
}

func (b *bell) hear(ctx context.Context) {
	wait := listenAtFirst
	for ctx.Err() == nil {
		began := time.Now()
		err := b.server.listen(ctx, func() { b.heard("") }, b.heard)
		if ctx.Err() != nil {
			return
		}
		b.logger.Debug("not listening for messages of other processes, polling finds them", slog.Any("err", err))
		if time.Since(began) > listenAtMost {
			wait = listenAtFirst
		}
		if sleep(ctx, jitter(wait)) != nil {
			return
		}
		wait = min(2*wait, listenAtMost)
	}
}

// jitter returns something from half of d to d.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
