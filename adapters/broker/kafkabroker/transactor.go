package kafkabroker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/cenkalti/backoff/v5"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/transact"
)

const (
	// transactionTimeout is when the cluster aborts a transaction of its own accord. One is open only while a finished batch is written.
	transactionTimeout = 30 * time.Second
	// shardBuffer is how many records of a partition may wait, so that batches fill; a fetch bounds their bytes.
	shardBuffer = 512
)

// transactor is a binding's member of a consumer group that works in Kafka transactions.
type transactor struct {
	*membership
	keys      string // topic, physical
	retention time.Duration
	work      transact.Work

	draining chan struct{} // closed when no new message is taken
	halt     chan struct{} // closed when what is left is dropped
	stopped  chan struct{}
	caughtUp chan struct{}

	mu      sync.Mutex
	started bool
	drained bool
	halted  bool
	why     error // why nothing is consumed
	full    map[int32]bool
	current *assignment
	failing int // assignments in a row that ended by an error
}

var (
	_ broker.Transactional = (*Broker)(nil)
	_ transact.Source      = (*transactor)(nil)
)

// Transactions makes the source of one binding. DeclareKeys must have been called before its Start.
func (b *Broker) Transactions(sub broker.Subscription, retention time.Duration) (transact.Source, error) {
	if err := envelope.ValidateTopic(sub.Topic); err != nil {
		return nil, fmt.Errorf("kafka: subscription: %w", err)
	}
	if !groupPattern.MatchString(sub.Group) {
		return nil, fmt.Errorf("kafka: subscription: group %q: 1 to 100 letters, digits, '.', '_' and '-' are allowed", sub.Group)
	}
	if version, err := sarama.ParseKafkaVersion(b.conf.Version); err != nil || !version.IsAtLeast(sarama.V2_5_0_0) {
		return nil, fmt.Errorf("kafka: transactions need version 2.5.0 or later, not %s: before it a member that lost its partition is not told from its owner", b.conf.Version)
	}
	if retention <= 0 {
		return nil, errors.New("kafka: transactions: a retention of keys is needed")
	}
	if b.isClosed() {
		return nil, ErrClosed
	}
	t := &transactor{
		membership: newMembership(b, sub), retention: retention,
		draining: make(chan struct{}), halt: make(chan struct{}), stopped: make(chan struct{}), caughtUp: make(chan struct{}),
		why: errNotSubscribed, full: map[int32]bool{},
	}
	t.keys, t.buffer = t.group+keysSuffix, shardBuffer
	b.mu.Lock()
	defer b.mu.Unlock()
	b.members[t] = struct{}{}
	return t, nil
}

// Start joins the group.
func (t *transactor) Start(work transact.Work) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.drained:
		return errStopping
	case t.started:
		return errors.New("kafka: the source has been started already: make another one")
	}
	t.started, t.work, t.why = true, work, errJoining
	go t.run()
	return nil
}

// Drain lets the batches under way commit and leaves the group.
func (t *transactor) Drain(ctx context.Context) error {
	t.mu.Lock()
	if !t.drained {
		t.drained, t.why = true, errStopping
		close(t.draining)
		if !t.started {
			close(t.stopped)
			defer t.b.forget(t)
		}
	}
	t.mu.Unlock()
	select {
	case <-t.stopped:
		return nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	if !t.halted {
		t.halted = true
		close(t.halt)
	}
	t.mu.Unlock()
	<-t.stopped
	return ctx.Err()
}

// Close drops what is under way.
func (t *transactor) Close() error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = t.Drain(ctx)
	return nil
}

// Consuming returns nil while this member has its place in the group and room for keys.
func (t *transactor) Consuming() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.why == nil && len(t.full) > 0 {
		return fmt.Errorf("kafka: %d partitions hold max_keys keys and wait until some expire: raise max_keys, or shorten the retention", len(t.full))
	}
	return t.why
}

// CaughtUp is closed once the group has committed what stood in the topic at Start.
func (t *transactor) CaughtUp() <-chan struct{} { return t.caughtUp }

func (t *transactor) setWhy(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.drained {
		t.why = err
	}
}

func (t *transactor) setFull(partition int32, full bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !full {
		delete(t.full, partition)
		return
	}
	if !t.full[partition] {
		t.full[partition] = true
		t.log.Error("kafka partition waits: its keys fill max_keys", slog.String("topic", t.physical), slog.Int("partition", int(partition)))
	}
}

// run is a member of the group until it is drained.
func (t *transactor) run() {
	ctx, cancel := context.WithCancel(context.Background())
	var workers sync.WaitGroup
	workers.Go(func() {
		defer cancel()
		t.awaitStop()
	})
	workers.Go(func() { t.watchBacklog(ctx, t.caughtUp) })
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = 100*time.Millisecond, 5*time.Second
	for ctx.Err() == nil {
		started := time.Now()
		err := t.join(ctx, func() sarama.ConsumerGroupHandler { return newAssignment(t) })
		if ctx.Err() != nil {
			break
		}
		if time.Since(started) > time.Minute {
			pause.Reset()
		}
		t.setWhy(orJoining(err))
		wait := pause.NextBackOff()
		t.log.Warn("kafka consumer group left; joining again", slog.String("topic", t.physical), slog.Duration("after", wait), slog.Any("err", err))
		select {
		case <-time.After(wait):
		case <-t.draining:
		}
	}
	cancel()
	workers.Wait()
	t.b.forget(t)
	close(t.stopped)
}

func orJoining(err error) error {
	if err == nil {
		return errJoining
	}
	return err
}

// awaitStop returns when a drain has nothing left to wait for.
func (t *transactor) awaitStop() {
	<-t.draining
	t.mu.Lock()
	current := t.current
	t.mu.Unlock()
	if current == nil {
		return
	}
	select {
	case <-current.finished:
	case <-current.session.Context().Done():
	case <-t.halt:
	}
}

func (t *transactor) setCurrent(a *assignment) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.current = a
}

// fence takes over the transactional id of the scope and partition: from here on every earlier owner's commit is refused, and what it left
// open is aborted.
func (t *transactor) fence(ctx context.Context, partition int32) (*producer, error) {
	conf, err := t.b.conf.producerConfig(t.b.opts)
	if err != nil {
		return nil, err
	}
	tx := &conf.Producer.Transaction
	tx.ID, tx.Timeout = fmt.Sprintf("%s-%d", t.group, partition), transactionTimeout
	tx.Retry.Max, tx.Retry.Backoff = 100, 50*time.Millisecond
	conf.Producer.Partitioner = func(topic string) sarama.Partitioner {
		if topic == t.keys {
			return sarama.NewManualPartitioner(topic)
		}
		return sarama.NewMurmur2Partitioner(topic)
	}
	return take(ctx, t.b, func() (*producer, error) { return startProducer(t.b.conf, conf) }, (*producer).close)
}
