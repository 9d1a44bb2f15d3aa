package app

import (
	"context"
	"fmt"
	"testing"
	"testing/fstest"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/app/proof"
	"github.com/oncemill/oncemill/app/proof/history"
	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/faultpoint"
)

type seatsWanted struct {
	Row   int `json:"row"`
	Seats int `json:"seats"`
}

// seats is a plugin as a user writes it: it counts the seats of each row and announces them, and another binding of it notes the announcements. With
// the mistake it remembers in its process what it has counted.
func seats(mistaken bool) handlers.Plugin {
	const tables = `-- +goose Up
CREATE TABLE seat_rows (seat_row INTEGER PRIMARY KEY, seats INTEGER NOT NULL);
CREATE TABLE seat_notes (note VARCHAR(64) NOT NULL);
`
	seen := newSeen()
	return handlers.Plugin{
		Name: "seats", Publishes: []string{"seats.counted", "seats.told"}, // nobody here receives the latter
		Migrations: fstest.MapFS{"sqlite/00001_init.sql": {Data: []byte(tables)}, "postgres/00001_init.sql": {Data: []byte(tables)}},
		Open: handlers.Open(func(_ struct{}, b *handlers.Bindings) error {
			b.On("seats.wanted", handlers.JSON(func(ctx context.Context, tx handlers.Tx, w seatsWanted) (any, error) {
				if mistaken && seen(tx.Key()) {
					return nil, nil
				}
				_, err := tx.ExecContext(ctx, tx.Rebind(`INSERT INTO seat_rows (seat_row, seats) VALUES (?, ?)
					ON CONFLICT (seat_row) DO UPDATE SET seats = seat_rows.seats + excluded.seats`), w.Row, w.Seats)
				if err != nil {
					return nil, err
				}
				if err := tx.Publish(ctx, "seats.counted", w); err != nil {
					return nil, err
				}
				return nil, tx.Publish(ctx, "seats.told", w)
			}))
			b.On("seats.counted", handlers.JSON(func(ctx context.Context, tx handlers.Tx, w seatsWanted) (any, error) {
				_, err := tx.ExecContext(ctx, tx.Rebind(`INSERT INTO seat_notes (note) VALUES (?)`), fmt.Sprint(w.Row, w.Seats))
				return nil, err
			}), handlers.Named("seats-notes"))
			return nil
		}),
		Trial: &handlers.Trial{
			Payload: func(binding string, n int) any {
				if binding == "seats-notes" {
					return nil // it gets what the other one announces
				}
				return seatsWanted{Row: n % 3, Seats: 1 + n%4}
			},
			Check: func(ctx context.Context, db *sqlx.DB, handled []handlers.Handled) error {
				want := 0
				for _, h := range handled {
					want += 1 + h.N%4
				}
				var got, notes int
				if err := db.GetContext(ctx, &got, `SELECT coalesce(sum(seats), 0) FROM seat_rows`); err != nil {
					return err
				}
				if err := db.GetContext(ctx, &notes, `SELECT count(*) FROM seat_notes`); err != nil {
					return err
				}
				if got != want || notes != len(handled) {
					return fmt.Errorf("%d seats and %d notes, want %d and %d", got, notes, want, len(handled))
				}
				return nil
			},
		},
	}
}

// A program's own plugin is played on the broker and the database that are configured.
func TestProveHoldsForAPluginOfOnesOwn(t *testing.T) {
	t.Parallel()
	r, code := proves(t, provingOwn, map[string]any{
		"broker": "rabbitmq", "brokers": map[string]any{"rabbitmq": map[string]any{"url": testenv.RabbitMQ(t).URL}},
		"database": "postgres", "databases": map[string]any{"postgres": map[string]any{"dsn": testenv.Postgres(t).DSN}},
	}, "--for", "4s", "--fault", "error", "--fault", "kill", "--step", "after-statement", "--step", "committed", "--step", "before-ack", "--step", "published-before-marked")
	require.Equal(t, ExitOK, code, "%+v", r.Verdict.Violations)
	require.Equal(t, proof.Count{Pairs: 8, Fired: 8}, r.Matrix.Total(), "three steps of the one binding, and one of the relay")
	require.Contains(t, r.Untried, proof.Untried{Binding: "seats-notes", Point: faultpoint.Received, Why: "the trial has no message for this binding, which receives what others publish"})
	require.Greater(t, r.Verdict.Keys, r.Messages, "what is published in turn has to be handled, too")
	require.Equal(t, r.Verdict.Keys, r.Verdict.Effects)
}

func TestProveFindsTheMistakeOfAPluginOfOnesOwn(t *testing.T) {
	t.Parallel()
	r, code := proves(t, provingOwnWrong, map[string]any{}, "--only", "matrix", "--binding", "seats", "--step", "before-commit", "--fault", "error")
	require.Equal(t, ExitFailed, code)
	require.Len(t, r.Verdict.Violations, 1)
	require.Equal(t, history.CheckFailed, r.Verdict.Violations[0].Rule)
	require.Contains(t, r.Verdict.Violations[0].Text, "plugin seats")
}

// The plugins that ship are played where that is asked for.
func TestProvePlaysTheBuiltInPlugins(t *testing.T) {
	t.Parallel()
	r, code := proves(t, provingOwn, map[string]any{}, "--builtin", "--only", "matrix", "--binding", "counters-add", "--step", "committed", "--fault", "error")
	require.Equal(t, ExitOK, code, "%+v", r.Verdict.Violations)
	require.Equal(t, proof.Count{Pairs: 1, Fired: 1}, r.Matrix.Total())
}

func TestATrialWithoutMessagesIsRefused(t *testing.T) {
	t.Parallel()
	silent := seats(false)
	silent.Trial.Payload = func(string, int) any { return nil }
	set := Builtin()
	set.Plugins = append(set.Plugins, silent)
	require.Contains(t, newConsole(t, set).fails(ExitFailed, "prove", "--dir", t.TempDir()), "no message")
}

func TestATrialOfAPluginIsWhole(t *testing.T) {
	p := seats(false)
	p.Trial.Check = nil
	require.ErrorContains(t, p.Validate(), "both Payload and Check")
}
