package sqlbroker_test

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/adapters/broker/sqlbroker"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/envelope"
)

// asReplica makes the test's own program a replica: its value is "kind schema topic", its database is replicaDSN's.
const (
	asReplica  = "ONCEMILL_SQLBROKER_REPLICA"
	replicaDSN = "ONCEMILL_SQLBROKER_DSN"
)

func TestMain(m *testing.M) {
	if what := os.Getenv(asReplica); what != "" {
		var kind, schema, topic string
		_, _ = fmt.Sscan(what, &kind, &schema, &topic)
		fmt.Fprintln(os.Stderr, replica(database{kind: kind, dsn: os.Getenv(replicaDSN), schema: schema}, topic))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// replica notes each message in a table of the test, and acks it, until it is killed.
func replica(db database, topic string) error {
	b, err := sqlbroker.Open(context.Background(), config(db, nil), broker.Options{ClientName: fmt.Sprint(os.Getpid())})
	if err != nil {
		return err
	}
	conn, err := openPlain(db)
	if err != nil {
		return err
	}
	sub, err := b.Subscriber(broker.Subscription{Topic: topic, Group: "g", InFlight: 20})
	if err != nil {
		return err
	}
	msgs, err := sub.Subscribe(context.Background(), topic)
	if err != nil {
		return err
	}
	for msg := range msgs {
		time.Sleep(2 * time.Millisecond)
		if _, err := conn.Exec(db.bind(`INSERT INTO handled VALUES ($1, $2)`), string(msg.Payload), envelope.DeliveryFrom(msg.Context()).Redelivered); err != nil {
			return err
		}
		msg.Ack()
	}
	return nil
}

// Two replicas are killed in the middle, and two others started: nothing is lost, nothing that was settled comes again, and what
// comes again says so.
func TestTwoReplicasKilled(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		b, topic := declared(t, db, "g")
		conn := plain(t, db)
		execute(t, conn, `CREATE TABLE handled (payload text, redelivered bool)`)
		const all = 1500
		publish(t, b.Publisher(), topic, numbered(all)...)
		start := func() *exec.Cmd {
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), asReplica+"="+db.kind+" "+db.schema+" "+topic, replicaDSN+"="+db.dsn)
			cmd.Stderr = os.Stderr
			cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			require.NoError(t, cmd.Start())
			t.Cleanup(func() {
				_ = cmd.Process.Kill()
				_, _ = cmd.Process.Wait()
			})
			return cmd
		}
		distinct := func(at int) func() error {
			return func() error {
				if n := count(t, conn, `SELECT count(DISTINCT payload) FROM handled`); n < at {
					return fmt.Errorf("%d handled, want %d", n, at)
				}
				return nil
			}
		}
		first := []*exec.Cmd{start(), start()}
		testenv.Eventually(t, patience, distinct(all/3))
		for _, cmd := range first {
			require.NoError(t, cmd.Process.Kill())
		}
		start()
		start()
		testenv.Eventually(t, time.Minute, distinct(all))
		testenv.Eventually(t, patience, func() error {
			if n := count(t, conn, `SELECT count(*) FROM oncemill_sql_deliveries`); n > 0 {
				return fmt.Errorf("%d deliveries are left", n)
			}
			return nil
		})
		require.Equal(t, all, count(t, conn, `SELECT count(DISTINCT payload) FROM handled`))
		require.LessOrEqual(t, count(t, conn, `SELECT count(*) FROM handled`), all+2*20)
		require.Zero(t, count(t, conn, `SELECT count(*) FROM (SELECT payload FROM handled GROUP BY payload HAVING count(*) > 1 AND max(CASE WHEN redelivered THEN 1 ELSE 0 END) = 0) AS unmarked`))
	})
}

// A handler that takes much longer than the visibility keeps its message.
func TestSlowHandlerKeepsItsMessage(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		short := func(c *sqlbroker.Config) { c.Visibility = time.Second }
		b, topic := declared(t, db, "g")
		publish(t, b.Publisher(), topic, "slow")
		_, mine := subscribe(t, open(t, config(db, short)), broker.Subscription{Topic: topic, Group: "g"})
		msg := next(t, mine)
		_, others := subscribe(t, open(t, config(db, short)), broker.Subscription{Topic: topic, Group: "g"})
		silent(t, others, 4*time.Second)
		require.NoError(t, msg.Context().Err())
		require.True(t, msg.Ack())
		<-msg.Context().Done()
		silent(t, others, 1500*time.Millisecond)
	})
}

// A replica whose network stops stops working on what it holds before another one gets it.
func TestStalledReplicaLosesItsMessage(t *testing.T) {
	for _, ordered := range []bool{false, true} {
		t.Run(fmt.Sprintf("ordered=%t", ordered), func(t *testing.T) {
			onEach(t, func(t *testing.T, db database) {
				b, topic := declared(t, db, "g")
				publish(t, b.Publisher(), topic, "p")
				proxied, proxy := throughProxy(t, db)
				sub := broker.Subscription{Topic: topic, Group: "g", Ordered: ordered}
				stalled, mine := subscribe(t, open(t, config(proxied, nil)), sub)
				msg := next(t, mine)
				_, others := subscribe(t, b, sub)
				proxy.Pause()
				again := next(t, others)
				require.Error(t, msg.Context().Err(), "both replicas work on the message")
				require.True(t, envelope.DeliveryFrom(again.Context()).Redelivered)
				require.True(t, msg.Ack(), "a late ack is ignored")
				require.Error(t, stalled.Consuming())
				proxy.Resume()
				require.True(t, again.Ack())
				testenv.Eventually(t, patience, stalled.Consuming)
				if !ordered {
					require.NoError(t, b.Close())
					b = open(t, config(db, nil))
					publish(t, b.Publisher(), topic, "next")
					require.Equal(t, []string{"next"}, ackAll(t, mine, 1))
				}
			})
		})
	}
}

// A claim that the server carried out while its answer was lost is found again by the living consumer.
func TestLostAnswerOfAClaim(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		b, topic := declared(t, db, "g")
		proxied, proxy := throughProxy(t, db)
		_, msgs := subscribe(t, open(t, config(proxied, func(c *sqlbroker.Config) { c.Visibility = 20 * time.Second })), broker.Subscription{Topic: topic, Group: "g"})
		publish(t, b.Publisher(), topic, "first")
		first := next(t, msgs)
		require.True(t, first.Ack())

		conn := plain(t, db)
		tx := begin(t, conn, sql.LevelDefault)
		publish(t, stockPublisher(t, tx, db.stockSchema(), false), topic, "p")
		_, err := tx.Exec(`UPDATE oncemill_sql_deliveries SET due = ` + db.soon())
		require.NoError(t, err)
		require.NoError(t, tx.Commit())
		waiting, release := db.holdClaims(t, conn)
		testenv.Eventually(t, patience, waiting)
		proxy.Cut()
		release()
		testenv.Eventually(t, patience, func() error {
			if count(t, conn, `SELECT count(*) FROM oncemill_sql_deliveries WHERE owner > 0`) == 0 {
				return fmt.Errorf("the claim was not carried out")
			}
			return nil
		})
		proxy.Restore()
		again := within(t, msgs, 10*time.Second)
		require.Equal(t, "p", string(again.Payload))
		require.Equal(t, envelope.DeliveryFrom(first.Context()).Session, envelope.DeliveryFrom(again.Context()).Session)
		require.False(t, envelope.DeliveryFrom(again.Context()).Redelivered, "it was never delivered")
		require.True(t, again.Ack())
	})
}

// The database restarts, cleanly and by a crash: what is in flight stays in flight, and nothing is lost or doubled.
func TestDatabaseRestart(t *testing.T) {
	for _, kind := range []string{"postgres", "mysql"} {
		t.Run(kind, func(t *testing.T) {
			server, db := private(t, kind)
			b := open(t, config(db, func(c *sqlbroker.Config) { c.Visibility = 30 * time.Second }))
			topic := testenv.Name(t, "t")
			declare(t, b, topic, "g")
			publish(t, b.Publisher(), topic, "before")
			_, msgs := subscribe(t, b, broker.Subscription{Topic: topic, Group: "g"})
			for n, stop := range []func(){server.Stop, server.Crash} {
				held := next(t, msgs)
				stop()
				require.Error(t, b.Ping(t.Context()))
				require.Error(t, b.Publisher().Publish(topic, newMessage("nobody took it")))
				require.True(t, held.Ack())
				server.Start()
				testenv.Eventually(t, patience, func() error { return b.Publisher().Publish(topic, newMessage(fmt.Sprint("after ", n))) })
				select {
				case <-held.Context().Done():
				case <-time.After(patience):
					require.FailNow(t, "the ack does not reach the server")
				}
			}
			require.Equal(t, []string{"after 1"}, ackAll(t, msgs, 1))
			silent(t, msgs, 500*time.Millisecond)
		})
	}
}

// No error and no log has the password, whatever is wrong with the connection string.
func TestPasswordInNoError(t *testing.T) {
	const secret = "s3cr3t-of-the-house"
	dead := testenv.Proxy(t, "127.0.0.1:1")
	dead.Cut()
	file := t.TempDir() + "/dsn"
	require.NoError(t, os.WriteFile(file, []byte("postgres://u:"+secret+"@%zz/db"), 0o600))
	var log strings.Builder
	logger := slog.New(slog.NewTextHandler(io.Writer(&log), &slog.HandlerOptions{Level: slog.LevelDebug}))
	for _, dsn := range []string{
		"postgres://u:" + secret + "@" + dead.Addr + "/db", "postgres://u:" + secret + "/x@h/db", "postgres://u:" + secret + "@h:port/db",
		"host=" + dead.Addr + " password='" + secret, "postgres://u:" + secret + "%zz@h/db", "user=u password=" + secret + " sslmode=wrong",
		"mysql://u:" + secret + "@" + dead.Addr + "/db", "mysql://u:" + secret + "/x@h/db", "u:" + secret + "@tcp(" + dead.Addr + ")/db", "u:" + secret + "@tcp(h/db",
		"file:" + file,
	} {
		cfg := config(database{}, nil)
		if name, isFile := strings.CutPrefix(dsn, "file:"); isFile {
			cfg.DSNFile = name
		} else {
			cfg.DSN = dsn
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		_, err := sqlbroker.Open(ctx, cfg, broker.Options{Logger: logger})
		cancel()
		require.Error(t, err)
		require.NotContains(t, err.Error(), secret[:8])
	}
	require.NotContains(t, log.String(), secret[:8])
}
