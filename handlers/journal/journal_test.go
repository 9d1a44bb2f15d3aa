package journal_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/handlers/internal/txtest"
	"github.com/oncemill/oncemill/handlers/journal"
)

func TestEntryHasKeyAndBody(t *testing.T) {
	txtest.Each(t, journal.Plugin(), "", func(t *testing.T, db *txtest.DB) {
		bodies := []string{`{"a": 1}`, "", "no JSON\x00\xff\n"}
		for i, body := range bodies {
			require.NoError(t, db.Deliver("journal.append", string(rune('a'+i)), body).Err)
		}
		require.NoError(t, db.Deliver("payments.completed", "p", `{}`).Err)
		for i, body := range bodies {
			var stored []byte
			require.NoError(t, db.Get(&stored, db.Rebind(`SELECT payload FROM journal_entries WHERE idempotency_key = ?`), string(rune('a'+i))))
			require.Equal(t, body, string(stored))
		}
		require.Equal(t, "payments.completed", db.Text(`SELECT topic FROM journal_entries WHERE scope = ? AND idempotency_key = 'p'`, txtest.Scope))
		require.Len(t, db.Text(`SELECT message_uuid FROM journal_entries WHERE idempotency_key = 'p'`), 36)
		require.NotEmpty(t, db.Text(`SELECT recorded_at FROM journal_entries WHERE idempotency_key = 'p'`))
	})
}

func TestOneEntryForAKeyForEver(t *testing.T) {
	txtest.Each(t, journal.Plugin(), "", func(t *testing.T, db *txtest.DB) {
		require.NoError(t, db.Deliver("journal.append", "k", `1`).Err)
		txtest.RequirePermanent(t, db.Deliver("journal.append", "k", `2`).Err, "journal-entry-exists")
		require.NoError(t, db.Deliver("journal.append", "K", `3`).Err, "keys are compared byte by byte")
		require.Equal(t, "2", db.Text(`SELECT count(*) FROM journal_entries`))
	})
}

func TestEntriesCannotBeChanged(t *testing.T) {
	txtest.Each(t, journal.Plugin(), "", func(t *testing.T, db *txtest.DB) {
		require.NoError(t, db.Deliver("journal.append", "k", `1`).Err)
		id := db.Text(`SELECT id FROM journal_entries`)
		statements := []string{
			`UPDATE journal_entries SET topic = 'x'`,
			`DELETE FROM journal_entries`,
		}
		switch db.Dialect {
		case "postgres":
			statements = append(statements, `TRUNCATE journal_entries`,
				`INSERT INTO journal_entries (scope, idempotency_key, topic, message_uuid, payload)
				VALUES ('test', 'k', 't', 'u', '') ON CONFLICT (scope, idempotency_key) DO UPDATE SET topic = 'x'`)
		case "sqlite":
			statements = append(statements, `REPLACE INTO journal_entries (id, scope, idempotency_key, topic, message_uuid, payload)
				VALUES (`+id+`, 'test', 'other', 't', 'u', x'')`)
			_, err := db.Exec(`REPLACE INTO journal_entries (scope, idempotency_key, topic, message_uuid, payload)
				VALUES ('test', 'k', 't', 'u', x'')`)
			require.NoError(t, err, "a second entry for a key is left out")
		}
		for _, statement := range statements {
			_, err := db.Exec(statement)
			require.ErrorContains(t, err, "append-only", statement)
		}
		require.Equal(t, "journal.append", db.Text(`SELECT topic FROM journal_entries`))
		require.Equal(t, id, db.Text(`SELECT id FROM journal_entries WHERE idempotency_key = 'k'`))
	})
}
