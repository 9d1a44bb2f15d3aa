//go:build !race

package handlertest_test

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/handlers/handlertest"
	"github.com/oncemill/oncemill/handlers/journal"
	"github.com/oncemill/oncemill/internal/testenv"
)

// onServers runs a test on each server that the kit knows.
func onServers(t *testing.T, test func(t *testing.T, place handlertest.Option)) {
	t.Run("postgres", func(t *testing.T) { test(t, handlertest.OnPostgres(testenv.PostgresServer(t))) })
	t.Run("mysql", func(t *testing.T) { test(t, handlertest.OnMySQL(testenv.MySQL(t).DSN)) })
}

func TestBuiltinPaymentsOnMySQL(t *testing.T) {
	server := testenv.MySQL(t).DSN
	onServer(t, handlertest.OnMySQL(server), "mysql", server, `SHOW DATABASES`)
}

// The journal's tables come with triggers.
func TestBuiltinJournalOnServers(t *testing.T) {
	onServers(t, func(t *testing.T, place handlertest.Option) {
		k := handlertest.New(t, journal.Plugin(), nil, place)
		k.Prove(func(k *handlertest.Kit) {
			k.WantRow(`SELECT count(*) FROM journal_entries`, 1)
			_, err := k.DB().ExecContext(k.T().Context(), `UPDATE journal_entries SET topic = 'another'`)
			require.Error(k.T(), err, "the copy has the triggers too")
		}, completed)
	})
}

// What is wrong on SQLite is wrong on a server, and what is right is right.
func TestMistakesOfHandlersAreCaughtOnServers(t *testing.T) {
	onServers(t, func(t *testing.T, place handlertest.Option) {
		said, tried := takenBy(t, place, true)
		require.NotEmpty(t, said, "%d schedules found nothing", tried)
		require.Greater(t, tried, 1, "it holds where the handler does not run twice:\n%s", said)
		t.Logf("caught by schedule %d:\n%s", tried, said)

		said, _ = takenBy(t, place, false)
		require.Empty(t, said)
	})
}

// takenBy proves a handler that may remember in its process what it has taken.
func takenBy(t *testing.T, place handlertest.Option, remembers bool) (said string, tried int) {
	t.Helper()
	var seen sync.Map
	k := handlertest.New(t, handlers.Plugin{Name: "shop", Open: handlers.Open(func(_ struct{}, b *handlers.Bindings) error {
		b.On("orders.placed", handlers.JSON(func(ctx context.Context, tx handlers.Tx, o order) (any, error) {
			if _, again := seen.LoadOrStore(o.ID, true); again && remembers {
				return nil, nil
			}
			_, err := tx.ExecContext(ctx, `INSERT INTO taken (n, shelf) VALUES (1, 'a')`)
			return nil, err
		}))
		return nil
	})}, nil, place)
	// References and what the database computes stay as they are in a copy.
	k.Exec(`CREATE TABLE shelves (shelf varchar(20) PRIMARY KEY)`)
	k.Exec(`CREATE TABLE taken (n int NOT NULL, twice int GENERATED ALWAYS AS (2 * n) STORED, shelf varchar(20), ` +
		`CONSTRAINT taken_shelf FOREIGN KEY (shelf) REFERENCES shelves (shelf))`)
	k.Exec(`INSERT INTO shelves VALUES ('a')`)
	return k.Shortest(handlertest.Kinds(), func(k *handlertest.Kit) {
		seen.Clear() // the next schedule is another process
		k.WantRow(`SELECT count(*), min(twice) FROM taken`, 1, 2)
		k.WantQuiet()
	}, placed)
}
