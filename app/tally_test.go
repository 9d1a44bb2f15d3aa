package app

import (
	"context"
	"sync/atomic"
	"testing/fstest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/handlers"
)

// tally is a plugin of one transactional handler: a row for each effect, and whatever a test wants it to do besides.
type tally struct {
	act  atomic.Pointer[func(ctx context.Context, tx handlers.Tx, msg *message.Message) error]
	runs atomic.Int64 // calls of the handler
}

const tallyTopic = "tally.add"

// does makes the handler do f before its effect.
func (l *tally) does(f func(ctx context.Context, tx handlers.Tx, msg *message.Message) error) {
	l.act.Store(&f)
}

func (l *tally) plugin() handlers.Plugin {
	table := &fstest.MapFile{Data: []byte("-- +goose Up\nCREATE TABLE tally (idempotency_key TEXT NOT NULL);\n")}
	return handlers.Plugin{
		Name: "tally", Migrations: fstest.MapFS{"sqlite/00001_init.sql": table, "postgres/00001_init.sql": table},
		Guarantee: "One row for each key.", Publishes: []string{"tally.added"},
		Open: func(_ func(any) error, b *handlers.Bindings) error {
			b.On(tallyTopic, l.handle)
			return nil
		},
	}
}

func (l *tally) handle(ctx context.Context, tx handlers.Tx, msg *message.Message) (any, error) {
	l.runs.Add(1)
	if act := l.act.Load(); act != nil {
		if err := (*act)(ctx, tx, msg); err != nil {
			return nil, err
		}
	}
	_, err := tx.ExecContext(ctx, tx.Rebind(`INSERT INTO tally (idempotency_key) VALUES (?)`), tx.Key())
	return map[string]int{"counted": 1}, err
}

// set is an application of this plugin alone.
func (l *tally) set() Set {
	s := Builtin()
	s.Plugins = []handlers.Plugin{l.plugin()}
	return s
}

// effects counts the rows of a key; "" counts all.
func (c *console) effects(key string) int {
	c.t.Helper()
	var n int
	c.inside(func(ctx context.Context, a *App) {
		query, args := `SELECT count(*) FROM tally`, []any{}
		if key != "" {
			query, args = query+` WHERE idempotency_key = ?`, []any{key}
		}
		require.NoError(c.t, a.store.DB().GetContext(ctx, &n, a.store.DB().Rebind(query), args...))
	})
	return n
}

// inside calls f with an application that has the console's database open.
func (c *console) inside(f func(ctx context.Context, a *App)) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	a := c.app()
	defer func() { require.NoError(c.t, a.Close()) }()
	require.NoError(c.t, a.openStore(ctx))
	f(ctx, a)
}

// app makes the application of the console's configuration; nothing is connected.
func (c *console) app() *App {
	c.t.Helper()
	one := &cli{set: c.set, errs: &buffer{}, env: c.env, flags: map[string]string{}}
	a, err := one.app()
	require.NoError(c.t, err)
	return a
}
