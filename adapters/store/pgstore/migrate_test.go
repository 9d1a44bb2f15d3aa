package pgstore_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/store"
	"github.com/oncemill/oncemill/adapters/store/pgstore"
	"github.com/oncemill/oncemill/internal/testenv"
)

const configVariable = "ONCEMILL_TEST_POSTGRES_MIGRATE"

// TestMain is also another process, which migrates and is killed meanwhile.
func TestMain(m *testing.M) {
	text := os.Getenv(configVariable)
	if text == "" {
		os.Exit(m.Run())
	}
	var c pgstore.Config
	err := json.Unmarshal([]byte(text), &c)
	if err == nil {
		fmt.Println("migrating")
		err = migrateOnce(context.Background(), c)
	}
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
}

// slowSet can be killed in its middle.
func slowSet() store.MigrationSet {
	return store.MigrationSet{Name: "slow", Files: fstest.MapFS{"postgres/00001_slow.sql": {Data: []byte(`-- +goose Up
CREATE TABLE slow (n integer);
INSERT INTO slow SELECT 1 FROM pg_sleep(0.3);
`)}}}
}

func migrateOnce(ctx context.Context, c pgstore.Config) error {
	s, err := pgstore.Open(ctx, c, store.Options{})
	if err != nil {
		return err
	}
	if err := s.Migrate(ctx, []store.MigrationSet{slowSet()}); err != nil {
		return err
	}
	return s.Close()
}

func startMigrating(t *testing.T, c pgstore.Config) *exec.Cmd {
	t.Helper()
	text, err := json.Marshal(c)
	require.NoError(t, err)
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), configVariable+"="+string(text))
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "migrating\n", line)
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd
}

// TestF054ManyReplicasMigrateAtOnce: on an empty schema, twenty rounds; in some of them a further one is killed while it migrates.
func TestF054ManyReplicasMigrateAtOnce(t *testing.T) {
	t.Parallel()
	for round := range 20 {
		db := testenv.Postgres(t)
		c := pgstore.Config{DSN: db.DSN, Schema: db.Schema, MaxOpen: 1 + round%3}
		if round%5 == 2 {
			victim := startMigrating(t, c)
			time.AfterFunc(time.Duration(round)*25*time.Millisecond, func() { _ = victim.Process.Kill() })
		}
		var wg sync.WaitGroup
		errs := make([]error, 6)
		for i := range errs {
			wg.Go(func() { errs[i] = migrateOnce(t.Context(), c) })
		}
		wg.Wait()
		for _, err := range errs {
			require.NoError(t, err, "round %d", round)
		}
		s, err := pgstore.Open(t.Context(), c, store.Options{})
		require.NoError(t, err)
		pending, err := s.Pending(t.Context(), []store.MigrationSet{slowSet()})
		require.NoError(t, err)
		require.Empty(t, pending)
		var versions, rows int
		require.NoError(t, s.DB().QueryRow(`SELECT (SELECT count(*) FROM oncemill_version_store WHERE version_id = 1), (SELECT count(*) FROM slow)`).Scan(&versions, &rows))
		require.Equal(t, 1, versions)
		require.Equal(t, 1, rows, "the plugin's migration ran once")
		require.NoError(t, s.Close())
	}
}

// TestPgBouncerReplicasMigrateAtOnce: the lock of who migrates holds, and is given back, where server connections are handed around.
func TestPgBouncerReplicasMigrateAtOnce(t *testing.T) {
	t.Parallel()
	for range 4 {
		db := testenv.PgBouncer(t)
		replicas := make([]*pgstore.Store, 6)
		for i := range replicas {
			s, err := pgstore.Open(t.Context(), pgstore.Config{DSN: db.DSN, MaxOpen: 2}, store.Options{})
			require.NoError(t, err)
			replicas[i] = s
		}
		var wg sync.WaitGroup
		errs := make([]error, len(replicas))
		for i, s := range replicas {
			wg.Go(func() { errs[i] = s.Migrate(t.Context(), []store.MigrationSet{slowSet()}) })
		}
		wg.Wait()
		for _, err := range errs {
			require.NoError(t, err)
		}
		var rows int
		require.NoError(t, replicas[0].DB().Get(&rows, `SELECT count(*) FROM slow`))
		require.Equal(t, 1, rows, "the plugin's migration ran once")
		for _, s := range replicas {
			require.NoError(t, s.Close())
		}
	}
}

func TestMigrationsOfPlugins(t *testing.T) {
	t.Parallel()
	db := testenv.Postgres(t)
	s, err := pgstore.Open(t.Context(), pgstore.Config{DSN: db.DSN}, store.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	plugin := store.MigrationSet{Name: "risk", Files: fstest.MapFS{"postgres/00001_init.sql": {Data: []byte("-- +goose Up\nCREATE TABLE risk_seen (id text PRIMARY KEY);\n")}}}
	pending, err := s.Pending(t.Context(), []store.MigrationSet{plugin})
	require.NoError(t, err)
	require.Equal(t, []string{"store/00001_init.sql", "store/00002_key_epoch.sql", "store/00003_outputs.sql", "risk/00001_init.sql"}, pending)
	var tables int
	require.NoError(t, s.DB().Get(&tables, `SELECT count(*) FROM pg_tables WHERE schemaname = $1`, db.Schema))
	require.Zero(t, tables, "asking changes nothing")

	require.NoError(t, s.Migrate(t.Context(), []store.MigrationSet{plugin}))
	pending, err = s.Pending(t.Context(), []store.MigrationSet{plugin})
	require.NoError(t, err)
	require.Empty(t, pending)

	none := store.MigrationSet{Name: "other", Files: fstest.MapFS{"sqlite/00001_init.sql": {}}}
	require.ErrorIs(t, s.Migrate(t.Context(), []store.MigrationSet{none}), store.ErrDialect)
	_, err = s.Pending(t.Context(), []store.MigrationSet{none})
	require.ErrorIs(t, err, store.ErrDialect)
}
