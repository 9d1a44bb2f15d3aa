package handlertest_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/handlers/handlertest"
	"github.com/oncemill/oncemill/handlers/payments"
	"github.com/oncemill/oncemill/internal/testenv"
)

func TestProve(t *testing.T) {
	handlertest.New(t, shop(take), nil).Prove(once, placed)
}

// Payments on a server, where rivals really run at the same time and connections really break.
func TestPaymentsOnPostgres(t *testing.T) {
	server := testenv.PostgresServer(t)
	onServer(t, handlertest.OnPostgres(server), "pgx", server, `SELECT datname FROM pg_database`)
}

// onServer proves payments, and that also killed processes leave no databases there.
func onServer(t *testing.T, place handlertest.Option, driver, server, databases string) {
	t.Helper()
	db, err := sqlx.Open(driver, server)
	require.NoError(t, err)
	defer db.Close()
	ours := func() (names []string) {
		require.NoError(t, db.Select(&names, databases))
		return slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, "handlertest_") })
	}
	before := ours()
	t.Run("proof", func(t *testing.T) { provePayments(handlertest.New(t, payments.Plugin(), nil, place)) })
	require.Subset(t, before, ours())
}

func TestViewsOnMySQLAreRefused(t *testing.T) {
	k := handlertest.New(t, handlers.Plugin{Name: "shop", Open: handlers.Open(func(_ struct{}, b *handlers.Bindings) error {
		b.On("orders.placed", handlers.JSON(func(context.Context, handlers.Tx, order) (any, error) { return nil, nil }))
		return nil
	})}, nil, handlertest.OnMySQL(testenv.MySQL(t).DSN))
	k.Exec(`CREATE VIEW nothing AS SELECT 1 AS one`)
	said, _ := k.Shortest(handlertest.Kinds(), func(*handlertest.Kit) {}, placed)
	require.Contains(t, said, "there are views or routines")
}

func provePayments(k *handlertest.Kit) {
	for _, account := range []string{"alice", "bob"} {
		k.DeliverTwice("accounts.opened", account, payments.Opened{AccountID: account, Currency: "EUR", OpeningBalance: "10.00"})
	}
	pay := payments.Requested{PaymentID: "p1", From: "alice", To: "bob", Amount: "4.00", Currency: "EUR"}
	k.Prove(func(k *handlertest.Kit) {
		k.WantRow(`SELECT balance FROM accounts WHERE id = 'alice'`, 600)
		k.WantRow(`SELECT sum(amount) FROM ledger_entries`, 0)
		k.WantPublished("payments.completed", 1)
		k.WantQuiet()
	}, handlertest.Message{To: "payments.requested", Key: "pay-1", Payload: pay})
}
