package handlertest

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/middleware/outbox"
	"github.com/oncemill/oncemill/middleware/parking"
)

// WantRow checks the columns of a query's first row, compared as the database writes them: 1 and "1" are the same.
func (k *Kit) WantRow(query string, want ...any) {
	k.t.Helper()
	rows, err := k.DB().QueryxContext(k.t.Context(), query)
	if err != nil {
		k.t.Fatalf("%s: %v", query, err)
	}
	defer rows.Close()
	if !rows.Next() {
		k.t.Fatalf("%s: no row, want %v", query, want)
	}
	got, err := rows.SliceScan()
	if err != nil {
		k.t.Fatalf("%s: %v", query, err)
	}
	if line(got) != line(want) {
		k.t.Errorf("%s: %s, want %s%s", query, line(got), line(want), k.reasons())
	}
}

func line(columns []any) string {
	texts := make([]string, len(columns))
	for i, c := range columns {
		if raw, ok := c.([]byte); ok {
			c = string(raw)
		}
		texts[i] = fmt.Sprint(c)
	}
	return strings.Join(texts, " | ")
}

// Published returns the messages that the handlers published to a topic, in order; one that went out in several copies is there once.
// Those of attempts that rolled back are not there.
func (k *Kit) Published(topic string) []*message.Message {
	k.t.Helper()
	out := k.sent()
	for _, r := range k.records() {
		out = append(out, sentMessage{r.Topic, r.UUID, r.Metadata, r.Payload})
	}
	var msgs []*message.Message
	for _, m := range distinct(out) {
		if m.Topic == topic {
			msg := message.NewMessage(m.UUID, m.Payload)
			maps.Copy(msg.Metadata, m.Metadata)
			msgs = append(msgs, msg)
		}
	}
	return msgs
}

// records are what stands in the outbox, and where external handlers commit outgoing messages themselves.
func (k *Kit) records() (all []outbox.Record) {
	k.t.Helper()
	sources := []outbox.Source{k.db.Outbox()}
	for _, b := range k.bindings {
		if b.External != nil && b.External.Outbox != nil && !slices.Contains(sources, b.External.Outbox) {
			sources = append(sources, b.External.Outbox)
		}
	}
	for _, source := range sources {
		records, err := source.List(k.t.Context(), false, 100_000)
		if err != nil {
			k.t.Fatalf("handlertest: reading the outbox: %v", err)
		}
		all = append(all, records...)
	}
	return all
}

// WantPublished checks how many messages the handlers published to a topic.
func (k *Kit) WantPublished(topic string, n int) {
	k.t.Helper()
	if got := len(k.Published(topic)); got != n {
		k.t.Errorf("%d messages were published to %s, want %d%s", got, topic, n, k.reasons())
	}
}

// WantDead checks the reasons of all dead letters, in the order in which they became such.
func (k *Kit) WantDead(reasons ...string) {
	k.t.Helper()
	var got []string
	for _, row := range k.parked(parking.Dead) {
		got = append(got, row.Reason)
	}
	if strings.Join(got, " ") != strings.Join(reasons, " ") {
		k.t.Errorf("dead letters: %q, want %q%s", got, reasons, k.reasons())
	}
}

// WantQuiet checks that nothing waits for another attempt and nothing is in doubt.
func (k *Kit) WantQuiet() {
	k.t.Helper()
	if rows := k.parked(parking.Waiting, parking.InDoubt); len(rows) > 0 {
		k.t.Errorf("%d messages are parked%s", len(rows), k.reasons())
	}
}

func (k *Kit) parked(states ...parking.State) []parking.Row {
	k.t.Helper()
	rows, err := k.db.Parking().List(k.t.Context(), parking.Filter{States: states, Limit: 10_000})
	if err != nil {
		k.t.Fatalf("handlertest: reading parked messages: %v", err)
	}
	return rows
}

// reasons says of every parked message why it is there, for the text of a failed check.
func (k *Kit) reasons() string {
	k.t.Helper()
	var b strings.Builder
	for _, row := range k.parked() {
		fmt.Fprintf(&b, "\n  %s of %s is %s: %s: %s", row.Key, row.Scope, row.State, row.Reason, row.Error)
	}
	return b.String()
}
