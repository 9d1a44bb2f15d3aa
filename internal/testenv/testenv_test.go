package testenv_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/internal/testenv"
)

func TestPostgresGivesEachTestItsSchema(t *testing.T) {
	t.Parallel()
	one, two := testenv.Postgres(t), testenv.Postgres(t)
	require.NotEqual(t, one.Schema, two.Schema)
	for _, d := range []testenv.Database{one, two} {
		db, err := sql.Open("pgx", d.DSN)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, db.Close()) })
		_, err = db.ExecContext(t.Context(), "CREATE TABLE payments (id int)")
		require.NoError(t, err)
		var schema string
		require.NoError(t, db.QueryRowContext(t.Context(), "SELECT current_schema()").Scan(&schema))
		require.Equal(t, d.Schema, schema)
	}
}

func TestPostgresDropsASchemaThatIsStillInUse(t *testing.T) {
	t.Parallel()
	var db *sql.DB
	var schema string
	t.Run("leaves a transaction open", func(t *testing.T) {
		d := testenv.Postgres(t)
		schema = d.Schema
		var err error
		db, err = sql.Open("pgx", d.DSN)
		require.NoError(t, err)
		tx, err := db.BeginTx(context.Background(), nil) //nolint:usetesting // outlives this test on purpose
		require.NoError(t, err)
		_, err = tx.ExecContext(t.Context(), "CREATE TABLE left_open (id int)")
		require.NoError(t, err)
	})
	if db == nil {
		t.Skip("no PostgreSQL")
	}
	t.Cleanup(func() { _ = db.Close() })
	var found int
	testenv.Eventually(t, 5*time.Second, func() error {
		return db.QueryRowContext(t.Context(), "SELECT count(*) FROM pg_namespace WHERE nspname = $1", schema).Scan(&found)
	})
	require.Zero(t, found)
}

func TestRabbitMQGivesEachTestItsVirtualHost(t *testing.T) {
	t.Parallel()
	r := testenv.RabbitMQ(t)
	conn, err := amqp.Dial(r.URL)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	ch, err := conn.Channel()
	require.NoError(t, err)
	queue := testenv.Name(t, "queue")
	_, err = ch.QueueDeclare(queue, true, false, false, false, nil)
	require.NoError(t, err)
	require.NoError(t, ch.PublishWithContext(t.Context(), "", queue, false, false, amqp.Publishing{Body: []byte("one")}))

	testenv.Eventually(t, 10*time.Second, func() error {
		res, err := http.Get(r.API + "/api/queues/" + r.VHost + "/" + queue)
		if err != nil {
			return err
		}
		defer func() { _ = res.Body.Close() }()
		var view struct{ Messages int }
		if err := json.NewDecoder(res.Body).Decode(&view); err != nil {
			return err
		}
		if view.Messages != 1 {
			return fmt.Errorf("%d messages", view.Messages)
		}
		return nil
	})
}

func TestKafkaAndNATSAnswer(t *testing.T) {
	t.Parallel()
	for _, address := range append(testenv.Kafka(t), strings.TrimPrefix(testenv.NATS(t), "nats://")) {
		conn, err := net.Dial("tcp", address)
		require.NoError(t, err)
		require.NoError(t, conn.Close())
	}
}

func TestNameIsValidAndUnique(t *testing.T) {
	t.Parallel()
	valid := regexp.MustCompile(`^[A-Za-z0-9-]{1,45}$`)
	seen := map[string]bool{}
	for _, prefix := range []string{"", "orders", "orders.v1_é", strings.Repeat("long", 20)} {
		t.Run("with some odd name: "+prefix, func(t *testing.T) {
			for range 100 {
				name := testenv.Name(t, prefix)
				require.Regexp(t, valid, name)
				require.False(t, seen[name])
				seen[name] = true
			}
		})
	}
}

// recorder is a test that can fail without failing the real one.
type recorder struct {
	testing.TB
	message string
	skipped bool
}

func (r *recorder) Helper() {}

func (r *recorder) Fatalf(format string, arguments ...any) {
	r.message = fmt.Sprintf(format, arguments...)
	panic(r)
}

func (r *recorder) Skipf(format string, arguments ...any) {
	r.skipped = true
	r.Fatalf(format, arguments...)
}

// record runs f until it fails or skips.
func record(f func(testing.TB)) (r *recorder) {
	r = &recorder{}
	defer func() {
		if p := recover(); p != nil && p != any(r) {
			panic(p)
		}
	}()
	f(r)
	return r
}

func TestMissingServer(t *testing.T) {
	t.Setenv("ONCEMILL_TEST_NATS", "")
	t.Setenv("ONCEMILL_TEST_MUST_RUN", "")
	r := record(func(t testing.TB) { testenv.NATS(t) })
	require.True(t, r.skipped)
	require.Contains(t, r.message, `eval "$(docker/services env)"`)

	t.Setenv("ONCEMILL_TEST_MUST_RUN", "postgres, nats")
	r = record(func(t testing.TB) { testenv.NATS(t) })
	require.False(t, r.skipped)
	require.Contains(t, r.message, `eval "$(docker/services env)"`)
}

func TestEventuallyReportsTheLastError(t *testing.T) {
	t.Parallel()
	calls := 0
	r := record(func(t testing.TB) {
		testenv.Eventually(t, 20*time.Millisecond, func() error { calls++; return fmt.Errorf("call %d", calls) })
	})
	require.Greater(t, calls, 1)
	require.Contains(t, r.message, fmt.Sprintf("call %d", calls))
}

func TestPrivateServerStopsAndStarts(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"postgres", "rabbitmq", "kafka", "nats", "smtp"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			slow := name == "rabbitmq" || name == "kafka"
			if slow && testing.Short() {
				t.Skip("takes 20 s")
			}
			s := testenv.Private(t, name)
			require.NoError(t, answers(s))
			s.Crash()
			require.Error(t, answers(s))
			s.Start()
			require.NoError(t, answers(s))
			if slow {
				return
			}
			s.Stop()
			require.Error(t, answers(s))
			s.Restart()
			require.NoError(t, answers(s))
		})
	}
}

// answers is nil if somebody accepts connections at the server's address.
func answers(s *testenv.Server) error {
	conn, err := net.Dial("tcp", regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(s.Address))
	if err == nil {
		err = conn.Close()
	}
	return err
}

func TestPrivateServerGoesWithItsProcess(t *testing.T) {
	if host := os.Getenv("TESTENV_CHILD"); host != "" {
		fmt.Println(testenv.Private(t, "nats").Address)
		os.Exit(1) // without cleanup
	}
	t.Parallel()
	testenv.NATS(t)
	cmd := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), "TESTENV_CHILD=1")
	out, err := cmd.Output()
	require.Error(t, err)
	host := regexp.MustCompile(`127\.0\.0\.1:\d+`).Find(out)
	require.NotEmpty(t, host)
	testenv.Eventually(t, 20*time.Second, func() error {
		conn, err := net.Dial("tcp", string(host))
		if err != nil {
			return nil
		}
		return errors.Join(errors.New("still runs"), conn.Close())
	})
}
