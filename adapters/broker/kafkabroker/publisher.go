package kafkabroker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/eapache/go-resiliency/breaker"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/outbox"
)

// publisher publishes through one idempotent producer, which it replaces when its sequence is broken.
type publisher struct {
	b *Broker

	// alone is held for writing while a record is sent that must not share a record batch with others.
	alone sync.RWMutex

	making sync.Mutex // held while a producer is made

	mu       sync.Mutex
	closed   bool
	current  *producer
	retired  sync.WaitGroup
	existing map[string]bool // topics, by physical name
}

var _ broker.Publisher = (*publisher)(nil)

func newPublisher(b *Broker) *publisher { return &publisher{b: b, existing: map[string]bool{}} }

// Publish publishes msgs and joins the errors of those that failed.
func (p *publisher) Publish(topic string, msgs ...*message.Message) error {
	return errors.Join(p.PublishBatch(context.Background(), topic, msgs)...)
}

// Close does nothing: the publisher is closed with its broker.
func (p *publisher) Close() error { return nil }

// PublishBatch publishes msgs in one go. A nil outcome says that all in-sync replicas have the record. An error after the end of ctx, or of the
// connection, leaves open whether the record is there.
func (p *publisher) PublishBatch(ctx context.Context, topic string, msgs []*message.Message) []error {
	if len(msgs) == 0 {
		return nil
	}
	errs := make([]error, len(msgs))
	if err := envelope.ValidateTopic(topic); err != nil {
		return fill(errs, unpublishable(topic, err))
	}
	physical := p.b.conf.physicalTopic(topic)
	records := make([]*sarama.ProducerMessage, len(msgs))
	for i, msg := range msgs {
		records[i], errs[i] = p.record(topic, physical, msg)
	}
	if err := p.ensure(ctx, physical); err != nil {
		return fill(errs, fmt.Errorf("kafka: publishing to %s: %w", topic, markOutage(err)))
	}
	p.alone.RLock()
	p.send(ctx, records, errs)
	p.alone.RUnlock()
	p.resendLarge(ctx, records, errs)
	for i, err := range errs {
		if err != nil && records[i] != nil {
			errs[i] = fmt.Errorf("kafka: publishing message %s to %s: %w", msgs[i].UUID, topic, markOutage(err))
		}
	}
	return errs
}

// fill gives err to those that have none yet.
func fill(errs []error, err error) []error {
	for i := range errs {
		if errs[i] == nil {
			errs[i] = err
		}
	}
	return errs
}

func unpublishable(topic string, err error) error {
	return fmt.Errorf("kafka: publishing to %s: %w: %w", topic, outbox.ErrUnpublishable, err)
}

// record makes the record of a message: watermill-kafka's headers, and the ordering key as the record key.
func (p *publisher) record(topic, physical string, msg *message.Message) (*sarama.ProducerMessage, error) {
	if err := envelope.ValidateMessage(msg, envelope.Limits{MaxPayload: p.b.opts.MaxPayload}); err != nil {
		return nil, unpublishable(topic, err)
	}
	record, err := kafka.DefaultMarshaler{}.Marshal(physical, msg)
	if err != nil {
		return nil, unpublishable(topic, err)
	}
	if key := msg.Metadata.Get(envelope.OrderingKeyHeader); key != "" {
		record.Key = sarama.StringEncoder(key)
	}
	if limit, size := p.b.conf.maxMessageBytes(p.b.opts), record.ByteSize(2); size > limit {
		return nil, unpublishable(topic, fmt.Errorf("the record has %d bytes, max_message_bytes allows %d", size, limit))
	}
	return record, nil
}

// ensure returns nil when the topic exists; it makes it where the configuration lets it.
func (p *publisher) ensure(ctx context.Context, physical string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	p.mu.Lock()
	closed, existing := p.closed, p.existing[physical]
	p.mu.Unlock()
	if closed {
		return ErrClosed
	}
	if existing {
		return nil
	}
	if err := p.b.ensureTopic(ctx, topicPlan{name: physical}); err != nil {
		if isMissingTopic(err) {
			return fmt.Errorf("%w: %w", outbox.ErrUnroutable, err)
		}
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.existing[physical] = true
	return nil
}

// send sends the records that have no error yet and waits for their outcomes, at most until ctx ends.
func (p *publisher) send(ctx context.Context, records []*sarama.ProducerMessage, errs []error) {
	producer, err := p.producer(ctx)
	if err != nil {
		fill(errs, err)
		return
	}
	batch := newBatch(len(records))
	for i, record := range records {
		if errs[i] != nil {
			continue
		}
		record.Metadata = batch.expect(i, record.ByteSize(2))
		if err := producer.send(ctx, record); err != nil {
			batch.resolve(i, err)
		}
	}
	batch.wait(ctx, errs)
	p.judge(producer, records, errs)
}

// judge draws the consequences of errors that say more than that one record failed.
func (p *publisher) judge(producer *producer, records []*sarama.ProducerMessage, errs []error) {
	for i, err := range errs {
		switch {
		case err == nil || records[i] == nil:
		case isMissingTopic(err):
			errs[i] = fmt.Errorf("%w: %w", outbox.ErrUnroutable, err)
			p.mu.Lock()
			delete(p.existing, records[i].Topic)
			p.mu.Unlock()
		case errors.Is(err, sarama.ErrInvalidRecord):
			errs[i] = fmt.Errorf("%w: %w", outbox.ErrUnpublishable, err)
		case breaksProducer(err):
			p.retire(producer, err)
		}
	}
}

// outages are errors of the connection, of the cluster as a whole, or of a partition that no replica serves now. They say nothing about the record.
var outages = []error{
	sarama.ErrOutOfBrokers, sarama.ErrNotConnected, sarama.ErrClosedClient, sarama.ErrShuttingDown, sarama.ErrBrokerNotFound, sarama.ErrBrokerNotAvailable,
	sarama.ErrControllerNotAvailable, sarama.ErrLeaderNotAvailable, sarama.ErrNotLeaderForPartition, sarama.ErrReplicaNotAvailable, sarama.ErrNotController,
	sarama.ErrFencedLeaderEpoch, sarama.ErrUnknownLeaderEpoch, sarama.ErrRequestTimedOut, sarama.ErrNetworkException, sarama.ErrNotEnoughReplicas,
	sarama.ErrNotEnoughReplicasAfterAppend, sarama.ErrKafkaStorageError, sarama.ErrSASLAuthenticationFailed, sarama.ErrThrottlingQuotaExceeded,
	sarama.ErrConsumerCoordinatorNotAvailable, breaker.ErrBreakerOpen, ErrClosed,
}

// markOutage marks an outage, unless the error is marked already.
func markOutage(err error) error {
	for _, mark := range []error{outbox.ErrUnpublishable, outbox.ErrUnroutable, outbox.ErrUnavailable} {
		if errors.Is(err, mark) {
			return err
		}
	}
	for _, outage := range outages {
		if errors.Is(err, outage) {
			return fmt.Errorf("%w: %w", outbox.ErrUnavailable, err)
		}
	}
	// After its last attempt the library returns what the connection said.
	var network *net.OpError
	if errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: %w", outbox.ErrUnavailable, err)
	}
	return err
}

// breaksProducer reports errors after which an idempotent producer cannot go on, or a new one gets on faster.
func breaksProducer(err error) bool {
	for _, broken := range []error{
		sarama.ErrOutOfOrderSequenceNumber, sarama.ErrUnknownProducerID, sarama.ErrInvalidProducerEpoch, sarama.ErrProducerFenced,
		sarama.ErrInvalidProducerIDMapping,
		sarama.ErrSASLAuthenticationFailed, // the password may have been replaced
		breaker.ErrBreakerOpen,             // the library waits for ten seconds after an outage
	} {
		if errors.Is(err, broken) {
			return true
		}
	}
	return false
}

// resendLarge sends records once more, each alone, that the cluster refused for their size: it judges
// whole record batches, so an innocent one may be among them.
func (p *publisher) resendLarge(ctx context.Context, records []*sarama.ProducerMessage, errs []error) {
	for i, err := range errs {
		if !errors.Is(err, sarama.ErrMessageSizeTooLarge) {
			continue
		}
		r := *records[i]
		again := &sarama.ProducerMessage{Topic: r.Topic, Key: r.Key, Value: r.Value, Headers: r.Headers}
		outcome := []error{nil}
		p.alone.Lock()
		p.send(ctx, []*sarama.ProducerMessage{again}, outcome)
		p.alone.Unlock()
		errs[i] = outcome[0]
		if errors.Is(outcome[0], sarama.ErrMessageSizeTooLarge) {
			errs[i] = fmt.Errorf("%w: larger than the topic's max.message.bytes: %w", outbox.ErrUnpublishable, outcome[0])
		}
	}
}

// producer returns the current producer, a new one where there is none.
func (p *publisher) producer(ctx context.Context) (*producer, error) {
	if current, err := p.inUse(); current != nil || err != nil {
		return current, err
	}
	return call(ctx, p.b, p.make)
}

func (p *publisher) inUse() (*producer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, ErrClosed
	}
	return p.current, nil
}

// make starts a producer, unless somebody else was faster.
func (p *publisher) make() (*producer, error) {
	p.making.Lock()
	defer p.making.Unlock()
	if current, err := p.inUse(); current != nil || err != nil {
		return current, err
	}
	conf, err := p.b.conf.producerConfig(p.b.opts)
	if err != nil {
		return nil, err
	}
	made, err := startProducer(p.b.conf, conf)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	closed := p.closed
	if !closed {
		p.current = made
	}
	p.mu.Unlock()
	if closed {
		made.close()
		return nil, ErrClosed
	}
	return made, nil
}

// retire takes a producer out of use; what is still on its way ends in the background.
func (p *publisher) retire(old *producer, why error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.current != old {
		return
	}
	p.current = nil
	p.b.log.Warn("kafka producer replaced", slog.Any("err", why))
	p.retired.Go(old.close)
}

// close ends the publisher; what is still on its way gets its outcome first.
func (p *publisher) close() {
	p.mu.Lock()
	p.closed = true
	current := p.current
	p.current = nil
	p.mu.Unlock()
	if current != nil {
		current.close()
	}
	p.retired.Wait()
}
