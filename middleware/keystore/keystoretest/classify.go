package keystoretest

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/keystore"
)

var classifyTests = []test{
	{"StatementErrors", classifyStatement},
	{"BrokenConnections", classifyConnection},
	{"Deadlock", classifyDeadlock},
	{"Capabilities", capabilities},
}

func classifyStatement(t *testing.T, h Harness) {
	_, err := h.DB.ExecContext(t.Context(), `CREATE UNIQUE INDEX effects_k ON effects (k)`)
	require.NoError(t, err)
	tx := begin(t, h.Store)
	require.NoError(t, effect(t.Context(), tx, "a"))
	err = effect(t.Context(), tx, "a")
	require.Error(t, err)
	require.Equal(t, keystore.FaultOther, h.Store.Classify(fmt.Errorf("handler: %w", err)), "a unique violation: %v", err)
	require.NoError(t, tx.Rollback())

	tx = begin(t, h.Store)
	_, err = tx.SQL().ExecContext(t.Context(), `SELECT nonsense FROM nowhere`)
	require.Error(t, err)
	require.Equal(t, keystore.FaultOther, h.Store.Classify(err), "%v", err)
	require.Equal(t, keystore.FaultOther, h.Store.Classify(errors.New("no error of the driver's")))
}

func classifyConnection(t *testing.T, h Harness) {
	require.Equal(t, keystore.FaultUnavailable, h.Store.Classify(fmt.Errorf("query: %w", driver.ErrBadConn)))
}

// classifyDeadlock makes two transactions wait for each other's business rows.
func classifyDeadlock(t *testing.T, h Harness) {
	if h.Store.Capabilities().Writers == 1 {
		t.Skip("one writer: nobody waits for each other's rows")
	}
	for _, key := range []string{"x", "y"} {
		tx := begin(t, h.Store)
		require.NoError(t, effect(t.Context(), tx, key))
		require.NoError(t, tx.Commit(t.Context(), nil))
	}
	touch := func(ctx context.Context, tx keystore.Tx, key string) error {
		_, err := tx.SQL().ExecContext(ctx, tx.SQL().Rebind(`UPDATE effects SET n = n + 1 WHERE k = ?`), key)
		return err
	}
	one, two := begin(t, h.Store), begin(t, h.Store)
	require.NoError(t, touch(t.Context(), one, "x"))
	require.NoError(t, touch(t.Context(), two, "y"))
	first := make(chan error, 1)
	go func() { first <- touch(t.Context(), one, "y") }()
	err := touch(t.Context(), two, "x")
	if err == nil {
		_ = two.Rollback()
		err = <-first
	} else {
		_ = two.Rollback()
		<-first
	}
	require.Error(t, err)
	require.Equal(t, keystore.FaultContention, h.Store.Classify(err), "%v", err)
}

func capabilities(t *testing.T, h Harness) {
	caps := h.Store.Capabilities()
	require.True(t, caps.Transactional, "this suite is for stores whose claims commit with the business change")
	if caps.Writers == 1 {
		return
	}
	// More than one writer: a second transaction commits while the first is open.
	tx := begin(t, h.Store)
	require.Equal(t, keystore.Fresh, claimOne(t, tx, claim("a")).Outcome)
	began := time.Now()
	complete(t, h.Reopen(t).Store, "b")
	require.Less(t, time.Since(began), patience)
}
