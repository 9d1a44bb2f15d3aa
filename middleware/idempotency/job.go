package idempotency

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/outbox"
	"github.com/oncemill/oncemill/middleware/parking"
)

// job is one delivered message on its way through the engine.
type job struct {
	msg         *message.Message
	id          keystore.ID // Key is empty where the message runs without deduplication
	rawKey      string      // what a dead letter shows where there is no valid key
	fingerprint string
	orderingKey string
	delivery    envelope.Delivery
	parked      *parking.Leased // set when the message comes from parking

	maxPayload int
	inject     func(context.Context, message.Metadata)

	token    string           // of the lease, while an external handler's message holds its key
	asking   string           // the owner under which a lease was asked for that may or may not have been given
	epoch    string           // of the database before this message ran, for what is noted elsewhere
	doubt    bool             // an earlier call of an external handler may have had its effect
	calledAt time.Time        // the first such call
	outcome  *json.RawMessage // the result of a call that could not be recorded, because its lease was lost
	suspect  bool             // may have killed a process: it runs alone and is counted before
	attempts int              // failures so far, as far as this process knows
	started  time.Time
}

// open reads what identifies a delivered message. The error is a violation of the message contract; the
// job is good enough for a dead letter then.
func (e *Engine) open(msg *message.Message) (*job, error) {
	j := e.newJob(msg)
	j.delivery = envelope.DeliveryFrom(msg.Context())
	j.suspect = j.delivery.Redelivered
	if msg.UUID == "" {
		msg.UUID = envelope.ReceivedUUID("", j.delivery)
	}
	return j, readable(func() error { return e.identify(j) })
}

// identify reads fingerprint, ordering key and key of a delivered message. Of a bad one it reads what tells its dead letter from others.
func (e *Engine) identify(j *job) error {
	j.fingerprint = e.binding.Fingerprint(j.msg)
	if raw, found, err := e.binding.Key(j.msg, j.delivery); err == nil && found && strings.TrimSpace(raw) != "" {
		j.rawKey = raw
	}
	if err := envelope.ValidateReceived(j.msg, envelope.Limits{MaxPayload: e.binding.MaxPayload}); err != nil {
		return err
	}
	j.orderingKey = j.msg.Metadata.Get(envelope.OrderingKeyHeader)
	key, _, err := envelope.ExtractKey(j.msg, j.delivery, e.binding.Key, e.binding.Missing)
	j.id.Key = key
	return err
}

// openParked makes the job of a parked row; its key was read when it was parked. What a message without one means is asked again.
func (e *Engine) openParked(row parking.Leased) (*job, error) {
	msg := message.NewMessage(row.UUID, row.Payload)
	maps.Copy(msg.Metadata, row.Metadata)
	j := e.newJob(msg)
	j.parked, j.rawKey, j.orderingKey = &row, row.Key, row.OrderingKey
	j.suspect, j.attempts = row.Suspect, row.Attempts
	j.fingerprint = row.Fingerprint
	return j, readable(func() (err error) {
		if j.fingerprint == "" {
			j.fingerprint = e.binding.Fingerprint(msg)
		}
		key := row.Key
		if key == "" {
			key, _, err = envelope.ExtractKey(msg, envelope.Delivery{}, e.binding.Key, e.binding.Missing)
		} else {
			err = envelope.ValidateKey(key)
		}
		if err == nil {
			j.id.Key = key
		}
		return err
	})
}

// readable calls read and makes a violation of every error, so that a key source or fingerprint that fails or panics
// costs its message and nothing else.
func readable(read func() error) (err error) {
	const rule = "key-unreadable"
	defer func() {
		if recover() != nil {
			err = &envelope.Violation{Rule: rule, Detail: "reading its key or its fingerprint panicked"}
		}
	}()
	err = read()
	if v := (*envelope.Violation)(nil); err != nil && !errors.As(err, &v) {
		err = &envelope.Violation{Rule: rule, Detail: err.Error()}
	}
	return err
}

func (e *Engine) newJob(msg *message.Message) *job {
	if msg.Metadata == nil {
		msg.Metadata = message.Metadata{}
	}
	return &job{
		msg: msg, id: keystore.ID{Scope: e.binding.Scope},
		maxPayload: e.binding.MaxPayload, inject: e.inject, started: time.Now(),
	}
}

// parent is the identity from which those of produced messages derive.
func (j *job) parent() string {
	if j.id.Key != "" {
		return j.id.Key
	}
	return j.msg.UUID
}

// attemptID names the message in the table of attempts, also where it has no key.
func (j *job) attemptID() keystore.ID {
	if j.id.Key != "" {
		return j.id
	}
	return keystore.ID{Scope: j.id.Scope, Key: "uuid:" + j.msg.UUID}
}

func (j *job) claim() keystore.Claim {
	c := keystore.Claim{ID: j.id, Fingerprint: j.fingerprint, OrderingKey: j.orderingKey, Token: j.token, Epoch: j.epoch}
	if j.parked != nil {
		c.Parked, c.Redriven = &j.parked.Lease, j.parked.Redriven
	}
	return c
}

func (j *job) settles() *parking.Lease {
	if j.parked == nil {
		return nil
	}
	return &j.parked.Lease
}

// record is an outgoing message of the handler's: the ordinal-th that it publishes.
func (j *job) record(ctx context.Context, topic string, payload any, ordinal int) (outbox.Record, error) {
	msg, err := asMessage(payload)
	if err != nil {
		return outbox.Record{}, err
	}
	parent := j.parent()
	identity := envelope.DeriveUUID(j.id.Scope, parent, ordinal)
	if msg.UUID == "" {
		msg.UUID = identity
	}
	if msg.Metadata.Get(envelope.KeyHeader) == "" {
		msg.Metadata.Set(envelope.KeyHeader, identity)
	}
	if msg.Metadata.Get(envelope.OrderingKeyHeader) == "" && j.orderingKey != "" {
		msg.Metadata.Set(envelope.OrderingKeyHeader, j.orderingKey)
	}
	if j.inject != nil {
		j.inject(ctx, msg.Metadata)
	}
	return NewRecord(topic, msg, j.maxPayload, j.id.Scope, parent)
}

// copyFor returns the message as one attempt's handler gets it: nothing that the handler does to it,
// also its Ack, reaches the broker or the next attempt.
func (j *job) copyFor(ctx context.Context) *message.Message {
	c := message.NewMessageWithContext(ctx, j.msg.UUID, bytes.Clone(j.msg.Payload))
	maps.Copy(c.Metadata, j.msg.Metadata)
	return c
}

// row is the parked form of the message.
func (j *job) row(state parking.State, f failure) parking.Row {
	row := parking.Row{
		State: state, Scope: j.id.Scope, UUID: j.msg.UUID, Key: j.id.Key,
		OrderingKey: j.orderingKey, Fingerprint: j.fingerprint,
		Payload: j.msg.Payload, Metadata: j.msg.Metadata,
		Reason: f.reason, Class: string(f.class), Error: f.text(), Attempts: j.attempts,
	}
	if row.Key == "" {
		row.Key = j.rawKey
	}
	if j.parked != nil {
		row.Topic, row.Redriven = j.parked.Topic, j.parked.Redriven
	}
	return row
}
