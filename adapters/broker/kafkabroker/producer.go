package kafkabroker

import (
	"context"
	"fmt"
	"sync"

	"github.com/IBM/sarama"
	"golang.org/x/sync/semaphore"
)

// maxBuffered bounds the bytes that wait for their outcome in one producer.
const maxBuffered = 64 << 20

// producer is one idempotent producer of the library, with its connections.
type producer struct {
	client sarama.Client
	async  sarama.AsyncProducer
	buffer *semaphore.Weighted
	reads  sync.WaitGroup

	mu     sync.RWMutex // read by senders, written by close
	closed bool
}

func startProducer(c Config, conf *sarama.Config) (*producer, error) {
	client, err := sarama.NewClient(c.Brokers, conf)
	if err != nil {
		return nil, c.unreachable(err)
	}
	if err := askAny(client); err != nil { // the library would ask one address for the producer's id, and give up
		_ = client.Close()
		return nil, c.unreachable(err)
	}
	async, err := sarama.NewAsyncProducerFromClient(client)
	if err != nil {
		_ = client.Close()
		return nil, fmt.Errorf("kafka: starting a producer: %w", err)
	}
	p := &producer{client: client, async: async, buffer: semaphore.NewWeighted(maxBuffered)}
	p.reads.Go(func() {
		for record := range async.Successes() {
			p.resolve(record, nil)
		}
	})
	p.reads.Go(func() {
		for failure := range async.Errors() {
			p.resolve(failure.Msg, failure.Err)
		}
	})
	return p, nil
}

// resolve passes on an outcome of the library.
func (p *producer) resolve(record *sarama.ProducerMessage, err error) {
	e := record.Metadata.(expected)
	p.buffer.Release(e.size)
	e.batch.resolve(e.index, err)
}

// send gives a record to the library. The outcome comes through the record's batch, unless send returns an error.
func (p *producer) send(ctx context.Context, record *sarama.ProducerMessage) error {
	e := record.Metadata.(expected)
	if err := p.buffer.Acquire(ctx, e.size); err != nil {
		return err
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.closed {
		p.buffer.Release(e.size)
		return ErrClosed
	}
	select {
	case p.async.Input() <- record:
		return nil
	case <-ctx.Done():
		p.buffer.Release(e.size)
		return ctx.Err()
	}
}

// close waits until everything on its way has its outcome.
func (p *producer) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.async.AsyncClose()
	p.reads.Wait()
	_ = p.client.Close()
}

// batch collects the outcomes of one call.
type batch struct {
	mu      sync.Mutex
	errs    map[int]error
	missing map[int]bool
	sealed  bool // nothing more is to be expected
	all     chan struct{}
}

// expected travels with a record and says where its outcome belongs.
type expected struct {
	batch *batch
	index int
	size  int64
}

func newBatch(n int) *batch {
	return &batch{errs: map[int]error{}, missing: make(map[int]bool, n), all: make(chan struct{})}
}

func (b *batch) expect(i, size int) expected {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.missing[i] = true
	return expected{batch: b, index: i, size: min(int64(size), maxBuffered)}
}

func (b *batch) resolve(i int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.missing[i] {
		return
	}
	delete(b.missing, i)
	if err != nil {
		b.errs[i] = err
	}
	if b.sealed && len(b.missing) == 0 {
		close(b.all)
	}
}

// wait writes the outcomes into errs. All records must have been handed over.
func (b *batch) wait(ctx context.Context, errs []error) {
	b.mu.Lock()
	b.sealed = true
	if len(b.missing) == 0 {
		close(b.all)
	}
	b.mu.Unlock()
	select {
	case <-b.all:
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, err := range b.errs {
		errs[i] = err
	}
	for i := range b.missing {
		errs[i] = fmt.Errorf("it is not known whether the record was written: %w", ctx.Err())
	}
}
