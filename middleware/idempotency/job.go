package idempotency

import (
	"bytes"
	"context"
	"maps"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/keystore"
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

	token    string // of the lease, while an external handler's message holds its key
	suspect  bool   // may have killed a process: it runs alone and is counted before
	attempts int    // failures so far, as far as this process knows
	started  time.Time
}

// open reads what identifies a delivered message. The error is an *envelope.Violation; the
// job is good enough for a dead letter then.
func (e *Engine) open(msg *message.Message) (*job, error) {
	j := e.newJob(msg)
	j.delivery = envelope.DeliveryFrom(msg.Context())
	j.suspect = j.delivery.Redelivered
	j.rawKey = msg.Metadata.Get(envelope.KeyHeader)
	if msg.UUID == "" {
		msg.UUID = envelope.ReceivedUUID("", j.delivery)
	}
	if err := envelope.ValidateReceived(msg, envelope.Limits{MaxPayload: e.binding.MaxPayload}); err != nil {
		return j, err
	}
	j.orderingKey = msg.Metadata.Get(envelope.OrderingKeyHeader)
	key, _, err := envelope.ExtractKey(msg, j.delivery, e.binding.Key, e.binding.Missing)
	if err != nil {
		return j, err
	}
	j.id.Key = key
	j.fingerprint = e.binding.Fingerprint(msg)
	return j, nil
}

// openParked makes the job of a parked row; its key was read when it was parked.
func (e *Engine) openParked(row parking.Leased) (*job, error) {
	msg := message.NewMessage(row.UUID, row.Payload)
	maps.Copy(msg.Metadata, row.Metadata)
	j := e.newJob(msg)
	j.parked, j.rawKey, j.orderingKey = &row, row.Key, row.OrderingKey
	j.suspect, j.attempts = row.Suspect, row.Attempts
	j.fingerprint = row.Fingerprint
	if row.Key == "" && e.binding.Missing == envelope.MissingPass {
		return j, nil
	}
	if err := envelope.ValidateKey(row.Key); err != nil {
		return j, err
	}
	if j.fingerprint == "" {
		j.fingerprint = e.binding.Fingerprint(msg)
	}
	j.id.Key = row.Key
	return j, nil
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
	c := keystore.Claim{ID: j.id, Fingerprint: j.fingerprint, OrderingKey: j.orderingKey, Token: j.token}
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
