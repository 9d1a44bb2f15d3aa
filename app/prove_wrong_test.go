package app

import (
	"context"
	"database/sql"
	"io/fs"
	"os"
	"sync"
	"testing/fstest"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/handlers/journal"
)

// Sets that break the promise, each by a mistake that people make.
const (
	provingForgetful = "forgetful"
	provingOutside   = "outside"
	provingHasty     = "hasty"
	// provingOwn is a set with a plugin that brings a trial of its own, and provingOwnWrong one with a fault in it.
	provingOwn      = "own"
	provingOwnWrong = "own-wrong"
)

// provingSet is the set of that name, or everything that ships.
func provingSet(as string) Set {
	set := Builtin()
	switch as {
	case provingOwn, provingOwnWrong:
		set.Plugins = append(set.Plugins, seats(as == provingOwnWrong))
	}
	for i, p := range set.Plugins {
		if p.Name != "journal" {
			continue
		}
		switch as {
		case provingForgetful:
			set.Plugins[i] = wrongJournal(p.Migrations, inMemory())
		case provingOutside:
			set.Plugins[i] = wrongJournal(looseJournal, outside())
		}
	}
	for i, f := range set.Brokers {
		if as == provingHasty && f.Name == "embedded" {
			set.Brokers[i] = hasty(f)
		}
	}
	return set
}

func wrongJournal(tables fs.FS, handle handlers.Handler) handlers.Plugin {
	return handlers.Plugin{
		Name: "journal", Migrations: tables,
		Open: handlers.Open(func(_ journal.Config, b *handlers.Bindings) error {
			b.On(journal.TopicCompleted, handle)
			b.On(journal.TopicDeclined, handle, handlers.Named("journal-declined"))
			b.On(journal.TopicAppend, handle, handlers.Named("journal-append"))
			return nil
		}),
	}
}

const insertEntry = `INSERT INTO journal_entries (scope, idempotency_key, topic, message_uuid, payload) VALUES (?, ?, '', ?, ?)`

// newSeen returns a function that reports whether it was called with a name before.
func newSeen() func(name string) bool {
	var mu sync.Mutex
	names := map[string]bool{}
	return func(name string) bool {
		mu.Lock()
		defer mu.Unlock()
		before := names[name]
		names[name] = true
		return before
	}
}

// inMemory does nothing for a message that it has seen.
func inMemory() handlers.Handler {
	seen := newSeen()
	return func(ctx context.Context, tx handlers.Tx, msg *message.Message) (any, error) {
		if seen(tx.Scope() + tx.Key()) {
			return nil, nil
		}
		_, err := tx.ExecContext(ctx, tx.Rebind(insertEntry), tx.Scope(), tx.Key(), msg.UUID, []byte(msg.Payload))
		return nil, err
	}
}

// looseJournal has no constraint that would stop a second entry.
var looseJournal = fstest.MapFS{"postgres/00001_init.sql": {Data: []byte(`-- +goose Up
CREATE TABLE journal_entries (scope text, idempotency_key text, topic text, message_uuid text, payload bytea);
`)}}

// outside writes over a connection of its own.
func outside() handlers.Handler {
	open := sync.OnceValues(func() (*sql.DB, error) { return sql.Open("pgx", os.Getenv("ONCEMILL_TEST_POSTGRES")) })
	return func(ctx context.Context, tx handlers.Tx, msg *message.Message) (any, error) {
		db, err := open()
		if err != nil {
			return nil, err
		}
		var schema string
		if err := tx.QueryRowContext(ctx, `SELECT current_schema()`).Scan(&schema); err != nil {
			return nil, err
		}
		_, err = db.ExecContext(ctx, `INSERT INTO `+schema+`.journal_entries (scope, idempotency_key, topic, message_uuid, payload) VALUES ($1, $2, '', $3, $4)`,
			tx.Scope(), tx.Key(), msg.UUID, []byte(msg.Payload))
		return nil, err
	}
}

// hasty is a broker whose subscribers acknowledge what they deliver.
func hasty(f broker.Factory) broker.Factory {
	open := f.Open
	f.Open = func(ctx context.Context, decode func(any) error, opts broker.Options) (broker.Broker, error) {
		b, err := open(ctx, decode, opts)
		if err != nil {
			return nil, err
		}
		return hastyBroker{b}, nil
	}
	return f
}

type hastyBroker struct{ broker.Broker }

func (b hastyBroker) Subscriber(sub broker.Subscription) (broker.Subscriber, error) {
	s, err := b.Broker.Subscriber(sub)
	return hastySubscriber{s}, err
}

type hastySubscriber struct{ broker.Subscriber }

func (s hastySubscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	in, err := s.Subscriber.Subscribe(ctx, topic)
	if err != nil {
		return nil, err
	}
	out := make(chan *message.Message)
	go func() {
		defer close(out)
		for msg := range in {
			again := msg.Copy()
			again.SetContext(context.WithoutCancel(msg.Context()))
			msg.Ack()
			<-msg.Context().Done() // the broker has the ack
			out <- again
		}
	}()
	return out, nil
}
