package proof

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/oncemill/oncemill/app/proof/history"
	"github.com/oncemill/oncemill/handlers"
)

// reading is how the rows of one table become events.
type reading struct {
	query string
	event func(row []string, n []int64) history.Event
}

// finalState adds what database and mailbox hold to the history. Nothing runs any more; the database may still be away for a moment.
func (t *Trial) finalState(ctx context.Context) error {
	const tries = 5 // with a database that answers
	var events []history.Event
	failures := 0
	err := t.until(ctx, t.cfg.Patience, "the database can be read", func(ctx context.Context) (bool, error) {
		var err error
		if events, err = t.readAll(ctx); err == nil {
			return true, nil
		}
		if t.cfg.DB.PingContext(ctx) == nil {
			failures++
		}
		if failures < tries {
			err = nil
		}
		return false, err
	})
	if err != nil {
		return err
	}
	for _, e := range events {
		t.rec.Add(e)
	}
	t.rec.Add(history.Event{At: time.Now(), Kind: history.Ended})
	return nil
}

func (t *Trial) readAll(ctx context.Context) (events []history.Event, err error) {
	for _, r := range append(t.cfg.Cast.readings(), states()...) {
		rows, err := t.read(ctx, r)
		if err != nil {
			return nil, fmt.Errorf("read what came of it: %w", err)
		}
		events = append(events, rows...)
	}
	events = append(events, t.letters(events)...)
	return append(events, t.cfg.Cast.check(ctx, t.cfg.DB, t.sent, completedIn(events, t.scopes))...), nil
}

// read makes an event of each row; each query has six texts and then two numbers.
func (t *Trial) read(ctx context.Context, r reading) (events []history.Event, err error) {
	rows, err := t.cfg.DB.QueryxContext(ctx, r.query)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var text [6]sql.NullString
		var n [2]int64
		if err := rows.Scan(&text[0], &text[1], &text[2], &text[3], &text[4], &text[5], &n[0], &n[1]); err != nil {
			return nil, err
		}
		var row []string
		for _, column := range text {
			row = append(row, column.String)
		}
		events = append(events, r.event(row, n[:]))
	}
	return events, rows.Err()
}

// states are the rows of keys, parking and outbox.
func states() []reading {
	return []reading{
		{`SELECT scope, idempotency_key, status, '', '', '', 0, 0 FROM processed_events`, func(row []string, _ []int64) history.Event {
			return history.Event{Kind: history.KeyState, Scope: row[0], Key: row[1], What: row[2]}
		}},
		{`SELECT scope, idempotency_key, message_uuid, state, reason, payload, 0, 0 FROM parked`, func(row []string, _ []int64) history.Event {
			return history.Event{Kind: history.Parked, Scope: row[0], Key: row[1], UUID: row[2], What: row[3], Reason: row[4], Print: printOf([]byte(row[5]))}
		}},
		{`SELECT topic, idempotency_key, message_uuid, reason, '', '', 0, 0 FROM outbox`, func(row []string, _ []int64) history.Event {
			return history.Event{Kind: history.Left, Topic: row[0], Key: row[1], UUID: row[2], Reason: row[3]}
		}},
	}
}

// completedIn tells from the rows that were read whether a binding's key is completed.
func completedIn(events []history.Event, bindings map[string]history.Binding) func(binding, key string) bool {
	type place struct{ scope, key string }
	completed := map[place]bool{}
	for _, e := range events {
		if e.Kind == history.KeyState && e.What == "completed" {
			completed[place{e.Scope, e.Key}] = true
		}
	}
	return func(binding, key string) bool { return completed[place{bindings[binding].Scope, key}] }
}

// letters are the letters that came, each with the key that it belongs to: one that is in the database, or that was published or had to be.
func (t *Trial) letters(final []history.Event) (letters []history.Event) {
	type owner struct{ scope, key string }
	owners := map[string]owner{}
	note := func(b history.Binding, key string) {
		if b.Letters {
			owners[handlers.NewKey(b.Scope, key).String()] = owner{b.Scope, key}
		}
	}
	for _, b := range t.cfg.Plan.Bindings {
		for _, e := range final {
			if e.Kind == history.KeyState && e.Scope == b.Scope {
				note(b, e.Key)
			}
			for _, o := range e.Outputs {
				if o.Topic == b.Topic {
					note(b, o.Key)
				}
			}
		}
		for _, e := range t.rec.Events() {
			if e.Kind == history.Sent && e.Topic == b.Topic {
				note(b, e.Key)
			}
		}
	}
	for _, letter := range t.mail.all() {
		o := owners[letter.id]
		if o.key == "" {
			o.key = "letter " + letter.id
		}
		letters = append(letters, history.Event{At: letter.at, Kind: history.Letter, Scope: o.scope, Key: o.key, UUID: letter.id})
	}
	return letters
}
