package natsbroker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/adapters/broker"
)

const (
	// ownerMark is the metadata by which we know a stream or consumer as made here; others are never changed.
	ownerMark = "oncemill"
	// dedupeWindow is JetStream's window for producers that set Nats-Msg-Id. Our publisher sets none.
	dedupeWindow = 2 * time.Minute
	// minAckPending is the least number of unsettled messages that a consumer allows for all replicas together.
	minAckPending = 10_000
	// orderedAckWait is how long a new lease holder waits for what a dead one left behind.
	orderedAckWait = 5 * time.Second
)

// Codes of JetStream's errors.
const (
	codeStreamNameInUse jetstream.ErrorCode = 10058
	codeSubjectOverlap  jetstream.ErrorCode = 10065
)

// topology makes, checks and finds streams and consumers.
type topology struct {
	cfg  *Config
	link *link
	// atomic has streams take atomic batches, which need a server of version 2.12.
	atomic bool

	mu    sync.Mutex
	found map[string]place // by topic, where the stream is
}

// place finds the stream of topic, whatever its name: an operator's stream may take many subjects.
func (t *topology) place(ctx context.Context, topic string) (place, error) {
	t.mu.Lock()
	known, ok := t.found[topic]
	t.mu.Unlock()
	if ok {
		return known, nil
	}
	p := t.cfg.place(topic)
	if t.cfg.Topics[topic].Stream != "" {
		return p, nil
	}
	name, err := t.link.js.StreamNameBySubject(ctx, p.subject)
	switch {
	case err == nil:
		p.stream = name
		t.remember(p)
	case !errors.Is(err, jetstream.ErrStreamNotFound):
		return p, fmt.Errorf("finding the stream of %s: %w", topic, err)
	}
	return p, nil
}

func (t *topology) remember(p place) {
	t.mu.Lock()
	t.found[p.topic] = p
	t.mu.Unlock()
}

// forget makes the next place look at the server again.
func (t *topology) forget(topic string) {
	t.mu.Lock()
	delete(t.found, topic)
	t.mu.Unlock()
}

// declareStream sees to it that topic has a stream.
func (t *topology) declareStream(ctx context.Context, topic string) error {
	if t.cfg.Topology == topologyOff {
		return nil
	}
	t.forget(topic)
	p, err := t.place(ctx, topic)
	if err != nil {
		return err
	}
	stream, err := t.link.js.Stream(ctx, p.stream)
	switch {
	case err == nil:
		return t.adoptStream(ctx, p, stream.CachedInfo())
	case !errors.Is(err, jetstream.ErrStreamNotFound):
		return fmt.Errorf("reading stream %s: %w", p.stream, err)
	case t.cfg.Topology == topologyVerify:
		return fmt.Errorf("topic %s has no stream: make one with subject %q, or set topology to declare", topic, p.subject)
	}
	return t.createStream(ctx, p)
}

func (t *topology) streamConfig(p place) jetstream.StreamConfig {
	cfg := jetstream.StreamConfig{
		Name: p.stream, Subjects: []string{p.subject}, Storage: jetstream.FileStorage, Retention: jetstream.LimitsPolicy,
		Discard: jetstream.DiscardNew, MaxAge: t.cfg.MaxAge, Replicas: t.cfg.Replicas, Duplicates: dedupeWindow,
		AllowDirect: true, AllowAtomicPublish: t.atomic, Metadata: map[string]string{ownerMark: "stream"},
	}
	cfg.Placement = t.cfg.Placement.servers()
	if cfg.MaxAge > 0 {
		cfg.Duplicates = min(cfg.Duplicates, cfg.MaxAge)
	}
	return cfg
}

func (t *topology) createStream(ctx context.Context, p place) error {
	_, err := t.link.js.CreateStream(ctx, t.streamConfig(p))
	var api *jetstream.APIError
	if errors.As(err, &api) && (api.ErrorCode == codeStreamNameInUse || api.ErrorCode == codeSubjectOverlap) {
		// Another replica was quicker, and may run another configuration for the length of a deploy.
		if name, found := t.link.js.StreamNameBySubject(ctx, p.subject); found == nil {
			p.stream, err = name, nil
		}
	}
	if err != nil {
		return fmt.Errorf("creating stream %s: %w", p.stream, err)
	}
	t.remember(p)
	return nil
}

// adoptStream uses a stream that is there. One of ours is brought to what is configured; an operator's stays as it is.
func (t *topology) adoptStream(ctx context.Context, p place, info *jetstream.StreamInfo) error {
	if !takesSubject(info.Config.Subjects, p.subject) {
		return fmt.Errorf("stream %s does not take subject %q: add it there, or name another under topics", p.stream, p.subject)
	}
	t.remember(p)
	want := t.streamConfig(p)
	mine := info.Config.Metadata[ownerMark] != "" && t.cfg.Topology == topologyDeclare
	have := info.Config
	want.AllowAtomicPublish = want.AllowAtomicPublish || have.AllowAtomicPublish
	if !mine || have.MaxAge == want.MaxAge && have.Replicas == want.Replicas && have.AllowAtomicPublish == want.AllowAtomicPublish {
		return nil
	}
	changed := have
	changed.AllowAtomicPublish = want.AllowAtomicPublish
	changed.MaxAge, changed.Replicas, changed.Duplicates = want.MaxAge, want.Replicas, want.Duplicates
	if _, err := t.link.js.UpdateStream(ctx, changed); err != nil {
		return fmt.Errorf("updating stream %s: %w", p.stream, err)
	}
	return nil
}

// takesSubject reports whether one of a stream's subjects, which may have wildcards, takes subject.
func takesSubject(subjects []string, subject string) bool {
	for _, pattern := range subjects {
		if matches(strings.Split(pattern, "."), strings.Split(subject, ".")) {
			return true
		}
	}
	return false
}

func matches(pattern, subject []string) bool {
	for i, token := range pattern {
		switch {
		case token == ">":
			return len(subject) > i
		case i >= len(subject) || token != "*" && token != subject[i]:
			return false
		}
	}
	return len(pattern) == len(subject)
}

// consumer sees to it that the subscription's durable consumer is there, and returns it.
func (t *topology) consumer(ctx context.Context, sub broker.Subscription) (jetstream.Consumer, error) {
	p, err := t.place(ctx, sub.Topic)
	if err != nil {
		return nil, err
	}
	durable := t.cfg.durable(sub.Topic, sub.Group)
	existing, err := t.link.js.Consumer(ctx, p.stream, durable)
	switch {
	case err == nil:
		return t.adoptConsumer(ctx, p, sub, existing)
	case errors.Is(err, jetstream.ErrStreamNotFound):
		t.forget(sub.Topic)
		return nil, fmt.Errorf("topic %s has no stream: %w", sub.Topic, err)
	case !errors.Is(err, jetstream.ErrConsumerNotFound):
		return nil, fmt.Errorf("reading consumer %s of stream %s: %w", durable, p.stream, err)
	case t.cfg.Topology != topologyDeclare:
		return nil, fmt.Errorf("stream %s has no consumer %s: make a durable pull consumer with explicit acks, or set topology to declare", p.stream, durable)
	}
	created, err := t.link.js.CreateOrUpdateConsumer(ctx, p.stream, t.consumerConfig(p, sub))
	if err != nil {
		return nil, fmt.Errorf("creating consumer %s of stream %s: %w", durable, p.stream, err)
	}
	return created, nil
}

func (t *topology) consumerConfig(p place, sub broker.Subscription) jetstream.ConsumerConfig {
	cfg := jetstream.ConsumerConfig{
		Durable: t.cfg.durable(sub.Topic, sub.Group), FilterSubject: p.subject,
		DeliverPolicy: jetstream.DeliverAllPolicy, AckPolicy: jetstream.AckExplicitPolicy, AckWait: t.cfg.AckWait,
		MaxDeliver: -1, MaxAckPending: max(minAckPending, 32*sub.InFlight), Metadata: map[string]string{ownerMark: "consumer"},
	}
	if sub.Ordered {
		cfg.AckWait = min(cfg.AckWait, orderedAckWait)
	}
	return cfg
}

// adoptConsumer uses a consumer that is there. One of ours is brought to what is configured; another is checked.
func (t *topology) adoptConsumer(ctx context.Context, p place, sub broker.Subscription, existing jetstream.Consumer) (jetstream.Consumer, error) {
	have, want := existing.CachedInfo().Config, t.consumerConfig(p, sub)
	if have.Metadata[ownerMark] == "" || t.cfg.Topology != topologyDeclare {
		return existing, t.checkConsumer(p, have)
	}
	want.MaxAckPending = max(want.MaxAckPending, have.MaxAckPending)
	if have.AckWait == want.AckWait && have.MaxAckPending == want.MaxAckPending && have.FilterSubject == want.FilterSubject {
		return existing, nil
	}
	changed := have
	changed.AckWait, changed.MaxAckPending, changed.FilterSubject = want.AckWait, want.MaxAckPending, want.FilterSubject
	updated, err := t.link.js.UpdateConsumer(ctx, p.stream, changed)
	if err != nil {
		return nil, fmt.Errorf("updating consumer %s of stream %s: %w", want.Durable, p.stream, err)
	}
	return updated, nil
}

// checkConsumer refuses a consumer that would lose messages or give none.
func (t *topology) checkConsumer(p place, have jetstream.ConsumerConfig) error {
	if t.cfg.Topology == topologyOff {
		return nil
	}
	filters := have.FilterSubjects
	if have.FilterSubject != "" {
		filters = []string{have.FilterSubject}
	}
	var errs []error
	if have.AckPolicy != jetstream.AckExplicitPolicy {
		errs = append(errs, errors.New("its ack policy must be explicit"))
	}
	if have.MaxDeliver > 0 {
		errs = append(errs, errors.New("its max_deliver must be -1: a message given up by the server would be lost"))
	}
	if len(filters) > 0 && !takesSubject(filters, p.subject) {
		errs = append(errs, fmt.Errorf("its filter must take subject %q", p.subject))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("consumer %s of stream %s: %w", have.Durable, p.stream, err)
	}
	return nil
}
