package redisstore_test

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/store"
	"github.com/oncemill/oncemill/adapters/store/redisstore"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/keystore/keystoretest"
)

func open(t *testing.T, c redisstore.Config) *redisstore.Store {
	t.Helper()
	s, err := redisstore.Open(t.Context(), c, store.Options{Logger: slog.New(slog.DiscardHandler), ClientName: "test"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func harness(c redisstore.Config) func(t *testing.T) keystoretest.ElsewhereHarness {
	return func(t *testing.T) keystoretest.ElsewhereHarness {
		own := c
		own.Prefix = testenv.Name(t, "keys") + ":"
		return keystoretest.ElsewhereHarness{
			Store:  open(t, own),
			Reopen: func(t *testing.T) keystore.Elsewhere { return open(t, own) },
		}
	}
}

func TestConformance(t *testing.T) {
	t.Parallel()
	keystoretest.RunElsewhere(t, harness(redisstore.Config{URL: testenv.Redis(t)}))
}
