package scenario

import (
	"context"
	"flag"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	_ "github.com/go-sql-driver/mysql"
	"github.com/goccy/go-yaml"
	"github.com/google/uuid"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/app"
	"github.com/oncemill/oncemill/app/builtin"
	"github.com/oncemill/oncemill/config"
	"github.com/oncemill/oncemill/internal/testenv"
)

// system is one combination of broker and database, set up for one test.
type system struct {
	t        *testing.T
	broker   string
	database string
	dir      string
	file     string
	service  string
	settings map[string]any
}

// node is a part of the configuration.
type node = map[string]any

// topics are all logical topics of the built-in plugins and of the instrumented ones.
var topics = []string{
	"payments.requested", "payments.completed", "payments.declined", "accounts.opened", "email.requested", "email.sent",
	"counters.add", "journal.append", tallyTopic, sequenceTopic, relabelIn, relabelOut,
}

// brokers are the brokers of the matrix, some in several forms; each sets up its own part of the configuration. of is the broker's name.
var brokers = []struct {
	name      string
	of        string
	databases string // on which it runs without -every; "" is all
	setUp     func(t *testing.T, s *system) (name string, settings node)
}{
	{"embedded", "embedded", "", func(*testing.T, *system) (string, node) { return "embedded", node{} }},
	{"rabbitmq-classic", "rabbitmq", "sqlite postgres", func(t *testing.T, s *system) (string, node) {
		return "rabbitmq", node{"url": testenv.RabbitMQ(t).URL, "queue_type": "classic"}
	}},
	{"rabbitmq-quorum", "rabbitmq", "sqlite postgres", func(t *testing.T, s *system) (string, node) {
		return "rabbitmq", node{"url": testenv.RabbitMQ(t).URL, "queue_type": "quorum"}
	}},
	{"kafka", "kafka", "sqlite postgres", func(t *testing.T, s *system) (string, node) {
		names := node{}
		for _, topic := range topics {
			names[topic] = node{"name": s.service + "." + topic}
		}
		return "kafka", node{"brokers": testenv.Kafka(t), "topics": names}
	}},
	{"nats", "nats", "postgres", func(t *testing.T, s *system) (string, node) {
		names := node{}
		for _, topic := range topics {
			names[topic] = node{"stream": s.service + "-" + strings.ReplaceAll(topic, ".", "-"), "subject": s.service + "." + topic}
		}
		return "nats", node{"url": testenv.NATS(t), "topics": names, "ack_wait": "10s"}
	}},
	{"sql-postgres", "sql", "sqlite", func(t *testing.T, s *system) (string, node) {
		db := testenv.Postgres(t)
		return "sql", node{"dsn": db.DSN, "schema": db.Schema, "visibility": "5s"}
	}},
	{"sql-mysql", "sql", "mysql", func(t *testing.T, s *system) (string, node) {
		return "sql", node{"dsn": testenv.MySQL(t).DSN, "visibility": "5s"}
	}},
	{"sqs", "sqs", "sqlite", func(t *testing.T, s *system) (string, node) {
		return "sqs", node{
			"endpoint": testenv.SQS(t).Endpoint, "region": "eu-central-1", "prefix": s.service + "-", "visibility": "8s", "wait": "1s", "caught_up_after": "2s",
		}
	}},
}

var databases = []struct {
	name  string
	setUp func(t *testing.T, s *system) node
}{
	{"sqlite", func(t *testing.T, s *system) node { return node{"path": filepath.Join(s.dir, "oncemill.db")} }},
	{"postgres", func(t *testing.T, s *system) node {
		db := testenv.Postgres(t)
		return node{"dsn": db.DSN, "schema": db.Schema}
	}},
	{"mysql", func(t *testing.T, s *system) node { return node{"dsn": testenv.MySQL(t).DSN} }},
}

// every makes the scenario run on every choice that is offered. Without it every broker, database and place for keys takes part, and the main ones
// in every pair.
var every = flag.Bool("every", false, "run the scenario on every combination of broker, database and keys")

// choice is one combination of broker, in one of its forms, database and place for keys.
type choice struct{ broker, database, keys string }

// choices are those on which the scenario runs.
func choices() []choice {
	var all []choice
	for _, b := range brokers {
		for _, d := range databases {
			if *every || b.databases == "" || strings.Contains(b.databases, d.name) {
				all = append(all, choice{b.name, d.name, "database"})
			}
			if *every {
				all = append(all, choice{b.name, d.name, "redis"}, choice{b.name, d.name, "dynamodb"})
			}
		}
	}
	if !*every {
		all = append(all, choice{"embedded", "sqlite", "redis"}, choice{"rabbitmq-quorum", "postgres", "redis"}, choice{"sqs", "sqlite", "dynamodb"})
	}
	return all
}

// onEverySystem runs test on the choices.
func onEverySystem(t *testing.T, test func(t *testing.T, s *system)) {
	for _, c := range choices() {
		name := c.broker + "/" + c.database
		if c.keys != "database" {
			name += "/" + c.keys
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t, c.broker, c.database)
			s.keepKeys(c.keys)
			test(t, s)
		})
	}
}

// Every broker, database and place for keys that "oncemill guarantees --matrix" offers takes part; with -every, every choice of broker and
// database. What is offered alone for handlers that turn messages into messages does not: payments write to the database; the tests of
// transforms run there.
func TestScenarioCoversTheMatrix(t *testing.T) {
	of := map[string]string{}
	for _, b := range brokers {
		of[b.name] = b.of
	}
	runs := map[string]bool{}
	for _, c := range choices() {
		runs["broker "+of[c.broker]], runs["database "+c.database], runs["keys "+c.keys] = true, true, true
		if *every {
			runs[of[c.broker]+" on "+c.database] = true
		}
	}
	offered := map[string]bool{}
	for _, c := range app.Matrix(builtin.Set()) {
		if !c.Offered() || c.Handler == "transform" {
			continue
		}
		offered["broker "+c.Broker], offered["database "+c.Database], offered["keys "+c.Keys] = true, true, true
		if *every {
			offered[c.Broker+" on "+c.Database] = true
		}
	}
	require.Equal(t, offered, runs, "add what is offered to brokers, databases and choices")
}

// newSystem sets up one combination; nothing runs yet.
func newSystem(t *testing.T, brokerName, databaseName string) *system {
	t.Helper()
	s := &system{t: t, dir: t.TempDir(), service: "s-" + uuid.NewString()[:8]}
	s.settings = node{
		"service": s.service, "data_dir": s.dir, "shutdown_timeout": "20s",
		"log": node{"level": "info"}, "admin": node{"listen": "off"},
	}
	for _, b := range brokers {
		if b.name == brokerName {
			name, settings := b.setUp(t, s)
			s.broker, s.settings["broker"], s.settings["brokers"] = name, name, node{name: settings}
		}
	}
	for _, d := range databases {
		if d.name == databaseName {
			s.database, s.settings["database"], s.settings["databases"] = d.name, d.name, node{d.name: d.setUp(t, s)}
		}
	}
	require.NotEmpty(t, s.broker)
	require.NotEmpty(t, s.database)
	s.file = filepath.Join(s.dir, "oncemill.yaml")
	return s
}

// set changes a setting by its path.
func (s *system) set(path string, value any) {
	part := s.settings
	names := strings.Split(path, "/")
	for _, name := range names[:len(names)-1] {
		next, ok := part[name].(node)
		if !ok {
			next = node{}
			part[name] = next
		}
		part = next
	}
	part[names[len(names)-1]] = value
}

// write writes the configuration file.
func (s *system) write() {
	data, err := yaml.Marshal(s.settings)
	require.NoError(s.t, err)
	require.NoError(s.t, os.WriteFile(s.file, data, 0o600))
}

// open opens the system's broker for the test itself, as another process would.
func (s *system) open() broker.Broker {
	s.t.Helper()
	cfg, err := config.Load(config.LoadOptions{File: s.file})
	require.NoError(s.t, err)
	for _, f := range builtin.Set().Brokers {
		if f.Name != s.broker {
			continue
		}
		b, err := f.Open(context.Background(), cfg.Brokers[s.broker].Decode, broker.Options{
			Logger: slog.New(slog.DiscardHandler), DataDir: s.dir, ClientName: "scenario", MaxPayload: 1 << 20,
		})
		require.NoError(s.t, err)
		s.t.Cleanup(func() { b.Close() })
		return b
	}
	s.t.Fatalf("broker %s is not linked", s.broker)
	return nil
}

// db opens the system's database for reading what happened.
func (s *system) db() *sqlx.DB {
	s.t.Helper()
	driver, dsn := "pgx", ""
	settings := s.settings["databases"].(node)[s.database].(node)
	switch s.database {
	case "sqlite":
		driver, dsn = "sqlite", "file:"+settings["path"].(string)+"?mode=ro&_pragma=busy_timeout(10000)"
	case "mysql":
		driver, dsn = "mysql", settings["dsn"].(string)
	default:
		dsn = settings["dsn"].(string)
	}
	db, err := sqlx.Open(driver, dsn)
	require.NoError(s.t, err)
	s.t.Cleanup(func() { db.Close() })
	return db
}

// number reads one number.
func number(t testing.TB, db *sqlx.DB, query string, args ...any) int64 {
	t.Helper()
	var n int64
	require.NoError(t, db.Get(&n, db.Rebind(query), args...), query)
	return n
}
