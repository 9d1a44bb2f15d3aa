package app

import (
	"encoding/json"
	"time"
	"unicode/utf8"

	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/outbox"
	"github.com/oncemill/oncemill/middleware/parking"
)

// What --json prints. Field names are part of the command line's contract: the structs of the stores may change, these only grow.

// body is a payload: text where it is valid UTF-8, else base64.
type body struct {
	Payload string `json:"payload,omitempty"`
	Base64  []byte `json:"payload_base64,omitempty"`
}

func viewBody(payload []byte) body {
	if utf8.Valid(payload) {
		return body{Payload: string(payload)}
	}
	return body{Base64: payload}
}

// rowView is a parked message.
type rowView struct {
	ID          int64             `json:"id"`
	State       string            `json:"state"`
	Scope       string            `json:"scope"`
	Topic       string            `json:"topic"`
	UUID        string            `json:"uuid"`
	Key         string            `json:"key"`
	OrderingKey string            `json:"ordering_key,omitempty"`
	Reason      string            `json:"reason"`
	Class       string            `json:"class"`
	Error       string            `json:"error,omitempty"`
	Attempts    int               `json:"attempts"`
	Fingerprint string            `json:"fingerprint,omitempty"`
	Metadata    map[string]string `json:"metadata,omitempty"`
	DueAt       time.Time         `json:"due_at,omitzero"`
	FirstAt     time.Time         `json:"first_at,omitzero"`
	LastAt      time.Time         `json:"last_at,omitzero"`
	History     []parking.Action  `json:"history,omitempty"`
	body
}

func viewRow(r parking.Row) rowView {
	return rowView{
		ID: r.ID, State: string(r.State), Scope: r.Scope, Topic: r.Topic, UUID: r.UUID, Key: r.Key, OrderingKey: r.OrderingKey,
		Reason: r.Reason, Class: r.Class, Error: r.Error, Attempts: r.Attempts, Fingerprint: r.Fingerprint, Metadata: r.Metadata,
		DueAt: r.DueAt, FirstAt: r.FirstAt, LastAt: r.LastAt, History: r.History, body: viewBody(r.Payload),
	}
}

func viewRows(rows []parking.Row) []rowView { return views(rows, viewRow) }

// keyView is a key as it stands in the store.
type keyView struct {
	Scope       string          `json:"scope"`
	Key         string          `json:"key"`
	State       string          `json:"state"`
	Fingerprint string          `json:"fingerprint,omitempty"`
	Result      json.RawMessage `json:"result,omitempty"`
	Owner       string          `json:"owner,omitempty"`
	ProcessedAt time.Time       `json:"processed_at,omitzero"`
	ExpiresAt   time.Time       `json:"expires_at,omitzero"`
}

func viewKey(r keystore.Record) keyView {
	state := string(r.State)
	if r.State == keystore.Absent {
		state = "absent"
	}
	return keyView{
		Scope: r.Scope, Key: r.Key, State: state, Fingerprint: r.Fingerprint, Result: r.Result, Owner: r.Owner,
		ProcessedAt: r.ProcessedAt, ExpiresAt: r.ExpiresAt,
	}
}

// recordView is an outgoing message. Its ID is one of its outbox's.
type recordView struct {
	Outbox      string            `json:"outbox"`
	ID          int64             `json:"id"`
	Topic       string            `json:"topic"`
	UUID        string            `json:"uuid"`
	Key         string            `json:"key"`
	OrderingKey string            `json:"ordering_key,omitempty"`
	Metadata    map[string]string `json:"metadata,omitempty"`
	Scope       string            `json:"scope,omitempty"`
	ParentKey   string            `json:"parent_key,omitempty"`
	DeliverAt   time.Time         `json:"deliver_at,omitzero"`
	CreatedAt   time.Time         `json:"created_at,omitzero"`
	Attempts    int               `json:"attempts"`
	Aside       bool              `json:"aside"`
	Reason      string            `json:"reason,omitempty"`
	body
}

func viewRecord(r outgoing) recordView {
	return recordView{
		Outbox: r.where, ID: r.ID, Topic: r.Topic, UUID: r.UUID, Key: r.Key, OrderingKey: r.OrderingKey, Metadata: r.Metadata, Scope: r.Scope, ParentKey: r.ParentKey,
		DeliverAt: r.DeliverAt, CreatedAt: r.CreatedAt, Attempts: r.Attempts, Aside: r.Aside, Reason: r.Reason, body: viewBody(r.Payload),
	}
}

// storyView is everything that is known of a key in one scope.
type storyView struct {
	keyView
	Failures  int          `json:"failures"`
	LastError string       `json:"last_error,omitempty"`
	LastTry   time.Time    `json:"last_try,omitzero"`
	Crashes   int          `json:"crashes"`
	Parked    []rowView    `json:"parked"`
	Outgoing  []recordView `json:"outgoing"`
}

func viewStory(s keyStory) storyView {
	return storyView{
		keyView: viewKey(s.Record), Failures: s.Attempts.Failures, LastError: s.Attempts.LastError, LastTry: s.Attempts.LastAt,
		Crashes: s.Attempts.Suspected, Parked: viewRows(s.Parked), Outgoing: views(s.Outgoing, viewRecord),
	}
}

// statusView is the state of all outboxes together, and of each.
type statusView struct {
	stateView
	Outboxes []stateView `json:"outboxes"`
}

// stateView is the state of an outbox; without a name, of several.
type stateView struct {
	Outbox           string  `json:"outbox,omitempty"`
	Pending          int64   `json:"pending"`
	Delayed          int64   `json:"delayed"`
	Aside            int64   `json:"aside"`
	OldestAgeSeconds float64 `json:"oldest_age_seconds"`
}

func viewState(where string, s outbox.Status) stateView {
	return stateView{where, s.Pending, s.Delayed, s.Aside, s.OldestAge.Seconds()}
}

// views is never nil, so that an empty list is printed as one.
func views[T, V any](items []T, view func(T) V) []V {
	all := make([]V, len(items))
	for i, item := range items {
		all[i] = view(item)
	}
	return all
}
