package app

import (
	"context"
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/internal/testenv"
)

// TestTablesOfTheNextVersion: a binary of version N-1 starts on tables of version N, the store's and a plugin's, with either way to migrate, beside a
// replica of version N; both handle messages, and nothing is taken back.
func TestTablesOfTheNextVersion(t *testing.T) {
	t.Parallel()
	for name, settings := range map[string]func(t *testing.T) []string{
		"sqlite": func(*testing.T) []string { return nil },
		"postgres": func(t *testing.T) []string {
			return []string{"DATABASE=postgres", "DATABASES__POSTGRES__DSN=" + testenv.Postgres(t).DSN}
		},
		"mysql": func(t *testing.T) []string {
			return []string{"DATABASE=mysql", "DATABASES__MYSQL__DSN=" + testenv.MySQL(t).DSN}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			older, newer := grown(2), grown(3)
			c := newConsole(t, older.set(), settings(t)...)
			next := *c
			next.set = newer.set()
			running := c.start()
			replica := next.start() // migrates under the one that runs
			c.migrateStoreAhead()
			send := func(kind string) {
				for i := range 10 {
					c.publish(tallyTopic, fmt.Sprintf("%s-%d", kind, i), "{}")
				}
			}
			send("both")
			c.waitEffects(10)
			running.end()

			for i, migrate := range []string{"auto", "verify"} {
				again := c.with("MIGRATE=" + migrate)
				restarted := again.start()
				send(migrate)
				again.waitEffects(20 + 11*i)
				older.does(refuseAll)
				newer.does(refuseAll)
				dead := again.bury("refused-by-" + migrate)
				older.does(allowAll)
				newer.does(allowAll)
				again.ok("dlq", "redrive", dead[0])
				again.waitEffects(21 + 11*i)
				again.waitKey(tallyScope, "refused-by-"+migrate, "completed")
				require.Contains(t, again.ok("migrate", "status"), "0 migrations are missing")
				restarted.end()
			}
			replica.end()
			require.Equal(t, []int64{0, 1, 2, 3}, c.versions("tally"))
			require.Equal(t, []int64{0, 1, 2, 3, 4}, c.versions("store"))
		})
	}
}

// migrateStoreAhead leaves the tables as a later version of the store would: with more columns, and a version that this one does not know.
func (c *console) migrateStoreAhead() {
	c.t.Helper()
	c.inside(func(ctx context.Context, a *App) {
		require.Equal(c.t, []int64{0, 1, 2, 3}, versionsOf(ctx, c.t, a, "store"), "the version after the last one is the next")
		for _, table := range []string{"processed_events", "attempts", "parked", "outbox", "outbox_lanes", "outbox_relays", "desk_actions", "key_epoch"} {
			_, err := a.store.DB().ExecContext(ctx, `ALTER TABLE `+table+` ADD COLUMN of_the_next_version varchar(20) DEFAULT 'x'`)
			require.NoError(c.t, err)
		}
		_, err := a.store.DB().ExecContext(ctx, `INSERT INTO oncemill_version_store (version_id, is_applied) VALUES (4, true)`)
		require.NoError(c.t, err)
	})
}

// versions lists those of a set, in the order in which they came.
func (c *console) versions(set string) (versions []int64) {
	c.t.Helper()
	c.inside(func(ctx context.Context, a *App) { versions = versionsOf(ctx, c.t, a, set) })
	return versions
}

func versionsOf(ctx context.Context, t *testing.T, a *App, set string) (versions []int64) {
	t.Helper()
	require.NoError(t, a.store.DB().SelectContext(ctx, &versions, `SELECT version_id FROM oncemill_version_`+set+` ORDER BY id`))
	return versions
}

func allowAll(context.Context, handlers.Tx, *message.Message) error { return nil }
