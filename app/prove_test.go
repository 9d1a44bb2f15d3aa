package app

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/app/proof"
	"github.com/oncemill/oncemill/app/proof/history"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/faultpoint"
)

// provingAs names the set that a replica of a test is made of; the replicas of a trial are this very test binary.
const provingAs = "APP_TEST_PROVE"

// proves runs a trial and returns its result and exit code.
func proves(t *testing.T, as string, config map[string]any, args ...string) (proof.Result, int) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "oncemill.yaml")
	text, err := json.Marshal(config) // which is YAML, too
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, text, 0o600))
	env := []string{provingAs + "=" + as}
	for _, pair := range os.Environ() {
		if !strings.HasPrefix(pair, "ONCEMILL_") || strings.HasPrefix(pair, "ONCEMILL_TEST_") {
			env = append(env, pair)
		}
	}
	var out, errs bytes.Buffer
	c := &cli{set: provingSet(as), in: strings.NewReader(""), out: &out, errs: &errs, env: env}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	code := c.main(ctx, append([]string{"prove", "--json", "--config", file, "--settle", "2m", "--dir", t.TempDir()}, args...))
	t.Log(errs.String())
	var r proof.Result
	require.NoError(t, json.Unmarshal(out.Bytes(), &r), "%s", out.String())
	return r, code
}

// A short trial of the whole on the embedded broker and SQLite: some steps of the matrix, and some seconds at random under a fresh seed, which the log names.
func TestProveHoldsOnEmbeddedAndSQLite(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "history.jsonl")
	r, code := proves(t, "", map[string]any{}, "--for", "3s", "--rate", "15", "--history", file, "--binding", "counters-add", "--step", "committed", "--step", "dead-letter-written")
	require.Equal(t, ExitOK, code, "%+v", r.Verdict.Violations)
	total := r.Matrix.Total()
	require.Equal(t, total.Pairs, total.Fired)
	for _, f := range proof.Faults() {
		require.Equal(t, 1, r.Matrix[faultpoint.Committed][f].Fired, f)
	}
	require.Equal(t, r.Verdict.Keys, r.Verdict.Effects)
	require.NotZero(t, r.Fell)
	require.NotZero(t, r.Duplicates)
	require.NotZero(t, r.Verdict.Refused)

	var out bytes.Buffer // the verdict on the file is the same
	c := &cli{set: Builtin(), out: &out, errs: &out}
	require.Equal(t, ExitOK, c.main(t.Context(), []string{"prove", "--json", "--check", file}), out.String())
	var again proof.Result
	require.NoError(t, json.Unmarshal(out.Bytes(), &again))
	require.Equal(t, r.Verdict, again.Verdict)
}

func TestProveHoldsOnRabbitMQAndPostgres(t *testing.T) {
	t.Parallel()
	db := testenv.Postgres(t)
	r, code := proves(t, "", map[string]any{
		"broker": "rabbitmq", "brokers": map[string]any{"rabbitmq": map[string]any{"url": testenv.RabbitMQ(t).URL}},
		"database": "postgres", "databases": map[string]any{"postgres": map[string]any{"dsn": db.DSN}},
	}, "--for", "4s", "--binding", "payments", "--fault", "cut", "--fault", "kill", "--step", "after-claim", "--step", "committed")
	require.Equal(t, ExitOK, code, "%+v", r.Verdict.Violations)
	require.Equal(t, proof.Count{Pairs: 4, Fired: 4}, r.Matrix.Total())
	require.Equal(t, r.Verdict.Keys, r.Verdict.Effects)
}

func TestProveHoldsOnKafkaAndPostgres(t *testing.T) {
	t.Parallel()
	db := testenv.Postgres(t)
	r, code := proves(t, "", map[string]any{
		"broker": "kafka", "brokers": map[string]any{"kafka": map[string]any{"brokers": testenv.Kafka(t), "session_timeout": "6s"}},
		"database": "postgres", "databases": map[string]any{"postgres": map[string]any{"dsn": db.DSN}},
	}, "--only", "matrix", "--binding", "payments", "--step", "committed", "--fault", "cut", "--fault", "kill", "--fault", "rival")
	require.Equal(t, ExitOK, code, "%+v", r.Verdict.Violations)
	require.Equal(t, proof.Count{Pairs: 3, Fired: 3}, r.Matrix.Total())
}

// A handler that remembers by itself what it has done forgets that its transaction was rolled back.
func TestProveFindsAHandlerThatRemembersInMemory(t *testing.T) {
	t.Parallel()
	r, code := proves(t, provingForgetful, map[string]any{}, "--only", "matrix", "--binding", "journal-append", "--step", "before-commit", "--fault", "error")
	require.Equal(t, ExitFailed, code)
	require.NotEmpty(t, r.Verdict.Violations)
	v := r.Verdict.Violations[0]
	require.Equal(t, history.Missing, v.Rule)
	require.Contains(t, v.Scope, "/journal-append")
	var told strings.Builder
	v.Tell(&told)
	t.Log(told.String())
	require.Contains(t, told.String(), "fault error before-commit", "the counter-example shows what led there")
}

// A handler that writes over a connection of its own has its effect twice when its transaction was rolled back.
func TestProveFindsAHandlerThatWritesOutsideItsTransaction(t *testing.T) {
	t.Parallel()
	db := testenv.Postgres(t)
	r, code := proves(t, provingOutside, map[string]any{
		"database": "postgres", "databases": map[string]any{"postgres": map[string]any{"dsn": db.DSN}},
	}, "--only", "matrix", "--binding", "journal-append", "--step", "before-commit", "--fault", "error")
	require.Equal(t, ExitFailed, code)
	require.NotEmpty(t, r.Verdict.Violations)
	require.Equal(t, history.Doubled, r.Verdict.Violations[0].Rule)
	require.Contains(t, r.Verdict.Violations[0].Scope, "/journal-append")
}

// A subscriber that acknowledges before the message is handled loses it in a crash.
func TestProveFindsAnAckThatComesTooEarly(t *testing.T) {
	t.Parallel()
	r, code := proves(t, provingHasty, map[string]any{}, "--only", "matrix", "--binding", "counters-add", "--step", "before-commit", "--fault", "kill", "--settle", "4s")
	require.Equal(t, ExitFailed, code)
	require.NotEmpty(t, r.Verdict.Violations)
	for _, v := range r.Verdict.Violations {
		require.Contains(t, []history.Rule{history.Unhandled, history.Lost}, v.Rule)
	}
}

func TestProveRefusesWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	c := newConsole(t, Builtin())
	require.Contains(t, c.fails(ExitUsage, "prove", "--step", "after-lunch"), "before-commit")
	require.Contains(t, c.fails(ExitUsage, "prove", "--fault", "meteor"), "rival")
	require.Contains(t, c.fails(ExitUsage, "prove", "--only", "hope"), "matrix")
	require.Contains(t, c.fails(ExitUsage, "prove", "worker"), "first order")
}

// A database in which somebody else has keys is not touched.
func TestProveKeepsAwayFromOthersKeys(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := newConsole(t, Builtin(), "DATABASES__SQLITE__PATH="+filepath.Join(dir, "prove.db"))
	c.ok("migrate", "up")
	shop := c.application()
	require.NoError(t, shop.openStore(t.Context()))
	_, err := shop.store.DB().Exec(`INSERT INTO processed_events (scope, idempotency_key, status, processed_at) VALUES ('shop/orders', 'k', 'completed', '2026-01-01T00:00:00.000000Z')`)
	require.NoError(t, err)

	require.Contains(t, newConsole(t, Builtin()).fails(ExitRefused, "prove", "--dir", dir), "shop/orders")
	var keys []string
	require.NoError(t, shop.store.DB().Select(&keys, `SELECT scope FROM processed_events`))
	require.Equal(t, []string{"shop/orders"}, keys)
}

// Faults come from a trial's worker alone: nothing else in the application sets its probes.
func TestOnlyATrialBreaksAnApplication(t *testing.T) {
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") || name == "prove_worker.go" {
			continue
		}
		source, err := os.ReadFile(name)
		require.NoError(t, err)
		require.NotContains(t, string(source), ".probes =", name)
		require.NotContains(t, string(source), "probes{", name)
	}
}

// The names that a trial gives itself are ones that each broker takes.
func TestATrialsNamesFit(t *testing.T) {
	flags := trialFlags{}.isolate("sqs", "sqlite", t.TempDir(), []string{"payments.requested"})
	require.Regexp(t, `^[a-z0-9-]{1,14}$`, flags.values["brokers.sqs.prefix"])
}
