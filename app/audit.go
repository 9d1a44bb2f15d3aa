package app

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jmoiron/sqlx"
)

// audit is what the tables of the built-in plugins say about a run.
type audit struct {
	Payments   int64 // completed payments
	Ledger     int64 // sum of all entries; zero in a sound ledger
	Unbalanced int64 // accounts whose balance is not the sum of their entries
	Letters    int64
	Counted    int64
	Journal    int64
	Dead       int64
	Waiting    int64
	InDoubt    int64
	InProgress int64
	Outbox     int64
}

// auditQueries fill the fields of an audit, each with one number.
func (a *audit) queries() []struct {
	into  *int64
	query string
} {
	return []struct {
		into  *int64
		query string
	}{
		{&a.Payments, `SELECT count(*) FROM payments WHERE status = 'completed'`},
		{&a.Ledger, `SELECT coalesce(sum(amount), 0) FROM ledger_entries`},
		{&a.Unbalanced, `SELECT count(*) FROM accounts WHERE balance <> (SELECT coalesce(sum(amount), 0) FROM ledger_entries WHERE account = accounts.id)`},
		{&a.Letters, `SELECT count(*) FROM letters`},
		{&a.Counted, `SELECT coalesce(sum(total), 0) FROM counters WHERE name = 'payments.completed'`},
		{&a.Journal, `SELECT count(*) FROM journal_entries`},
		{&a.Dead, `SELECT count(*) FROM parked WHERE state = 'dead'`},
		{&a.Waiting, `SELECT count(*) FROM parked WHERE state = 'waiting'`},
		{&a.InDoubt, `SELECT count(*) FROM parked WHERE state = 'in_doubt'`},
		{&a.InProgress, `SELECT count(*) FROM processed_events WHERE status = 'in_progress'`},
		{&a.Outbox, `SELECT count(*) FROM outbox`},
	}
}

// readAudit reads all numbers in one snapshot.
func readAudit(ctx context.Context, db *sqlx.DB) (audit, error) {
	var a audit
	tx, err := db.BeginTxx(ctx, &sql.TxOptions{ReadOnly: true, Isolation: sql.LevelDefault})
	if err != nil {
		return a, fmt.Errorf("begin the audit: %w", err)
	}
	defer tx.Rollback()
	for _, q := range a.queries() {
		if err := tx.QueryRowContext(ctx, q.query).Scan(q.into); err != nil {
			return a, fmt.Errorf("audit: %w", err)
		}
	}
	return a, nil
}

// settled reports that nothing is on its way any more.
func (a audit) settled(payments int64) bool {
	return a.Payments+a.Dead >= payments && a.Letters+a.InDoubt >= a.Payments && a.Counted >= a.Payments && a.Journal >= a.Payments &&
		a.Waiting == 0 && a.InProgress == 0 && a.Outbox == 0
}

// problems lists everything that is not as it must be after that many payments.
func (a audit) problems(payments int64) error {
	var errs []error
	for _, c := range []struct {
		what      string
		got, want int64
	}{
		{"payments made", a.Payments, payments},
		{"sum of the ledger", a.Ledger, 0},
		{"accounts that do not balance", a.Unbalanced, 0},
		{"letters", a.Letters, payments},
		{"payments counted", a.Counted, payments},
		{"journal entries", a.Journal, payments},
		{"dead letters", a.Dead, 0},
		{"messages waiting", a.Waiting, 0},
		{"messages in doubt", a.InDoubt, 0},
		{"keys in progress", a.InProgress, 0},
		{"messages in the outbox", a.Outbox, 0},
	} {
		if c.got != c.want {
			errs = append(errs, fmt.Errorf("%s: %d, must be %d", c.what, c.got, c.want))
		}
	}
	return errors.Join(errs...)
}
