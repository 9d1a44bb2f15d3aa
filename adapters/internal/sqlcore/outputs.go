package sqlcore

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/outbox"
	"github.com/oncemill/oncemill/middleware/parking"
)

// output is an outgoing message as it is kept with the key of the message that caused it. The names are stored.
type output struct {
	Topic       string            `json:"topic"`
	UUID        string            `json:"uuid"`
	Key         string            `json:"key"`
	OrderingKey string            `json:"ordering_key,omitempty"`
	Metadata    map[string]string `json:"metadata,omitempty"`
	Payload     []byte            `json:"payload"`
	DeliverAt   time.Time         `json:"deliver_at,omitzero"`
	Parent      string            `json:"parent,omitempty"`
}

func encodeOutputs(records []outbox.Record) []byte {
	outputs := make([]output, len(records))
	for i, r := range records {
		outputs[i] = output{r.Topic, r.UUID, r.Key, r.OrderingKey, r.Metadata, notNil(r.Payload), r.DeliverAt, r.ParentKey}
	}
	return mustJSON(outputs)
}

func decodeOutputs(scope string, data []byte) ([]outbox.Record, error) {
	var outputs []output
	if err := json.Unmarshal(data, &outputs); err != nil {
		return nil, fmt.Errorf("read the messages that a key keeps: %w", err)
	}
	records := make([]outbox.Record, len(outputs))
	for i, o := range outputs {
		records[i] = outbox.Record{
			Topic: o.Topic, UUID: o.UUID, Key: o.Key, OrderingKey: o.OrderingKey, Metadata: o.Metadata, Payload: o.Payload,
			DeliverAt: o.DeliverAt, Scope: scope, ParentKey: o.Parent,
		}
	}
	return records, nil
}

const keepOutputs = `WITH v(scope, idempotency_key, outputs, ord) AS ({rows})
UPDATE processed_events SET outputs = v.outputs
FROM v WHERE processed_events.scope = v.scope AND processed_events.idempotency_key = v.idempotency_key`

// keeps are the completions whose outputs are kept, for keepOutputs.
func keeps(completions []keystore.Completion) *Set {
	kept := &Set{Types: []string{"text", "text", "bytes"}}
	for _, c := range completions {
		if c.KeepOutputs && !c.Keep && c.State == keystore.Completed && c.Claim.Key != "" {
			kept.Rows = append(kept.Rows, []any{c.Claim.Scope, c.Claim.Key, encodeOutputs(c.Outbox)})
		}
	}
	return kept
}

const selectOutputs = `SELECT p.outputs FROM processed_events p WHERE p.scope = ? AND p.idempotency_key = ?
	AND p.status = 'completed' AND p.expires_at > {clock} AND p.outputs IS NOT NULL`

func readOutputs(ctx context.Context, s Session, id keystore.ID) (records []outbox.Record, kept bool, err error) {
	err = s.Send(ctx, &Stmt{Query: selectOutputs, Args: []any{id.Scope, id.Key}, Row: func(scan Scan) error {
		var data []byte
		if err := scan(&data); err != nil {
			return err
		}
		kept = true
		records, err = decodeOutputs(id.Scope, data)
		return err
	}})
	return records, kept, err
}

// Outputs implements keystore.Tx.
func (t *tx) Outputs(ctx context.Context, id keystore.ID) (records []outbox.Record, kept bool, err error) {
	records, kept, err = readOutputs(ctx, t.session, id)
	if err != nil {
		return nil, false, fmt.Errorf("read the messages that a key keeps: %w", err)
	}
	return records, kept, nil
}

// Resend implements keystore.Desk.
func (k *Keys) Resend(ctx context.Context, id keystore.ID, by, why string) (int, error) {
	var n int
	err := k.inTx(ctx, func(s Session) (err error) {
		n, err = resend(ctx, s, id, by, why)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("send a key's messages again: %w", err)
	}
	k.committed(n > 0, false)
	return n, nil
}

func resend(ctx context.Context, s Session, id keystore.ID, by, why string) (int, error) {
	known, err := readKey(ctx, s, id, true)
	switch {
	case err != nil:
		return 0, err
	case known == nil:
		return 0, keystore.ErrNotFound
	case known.State != keystore.Completed:
		return 0, &parking.Refusal{Why: fmt.Sprintf("the key is %s: only what was completed can be sent again", known.State)}
	}
	records, kept, err := readOutputs(ctx, s, id)
	if err != nil {
		return 0, err
	}
	if !kept {
		return 0, &parking.Refusal{Why: "the key keeps no messages, or is past its time: they are kept where the binding has on_duplicate: resend when the message is handled"}
	}
	stmts := append(insertOutbox(records), logAction(parking.Action{What: "resend", By: by, Why: why}, id.Scope, id.Key, 0))
	return len(records), s.Send(ctx, stmts...)
}
