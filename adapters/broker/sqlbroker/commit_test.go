package sqlbroker_test

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"testing"
	"time"

	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
)

// A message that commits after ones with a higher offset were delivered and settled is delivered all the same.
func TestLateCommitIsNotLost(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		b, topic := declared(t, db, "g")
		late := begin(t, plain(t, db), sql.LevelDefault)
		publish(t, stockPublisher(t, late, db.stockSchema(), false), topic, "late")
		publish(t, b.Publisher(), topic, numbered(300)...)
		_, msgs := subscribe(t, b, broker.Subscription{Topic: topic, Group: "g"})
		require.NotContains(t, ackAll(t, msgs, 300), "late")
		require.NoError(t, late.Commit())
		require.Equal(t, []string{"late"}, ackAll(t, msgs, 1))

		undone := begin(t, plain(t, db), sql.LevelDefault)
		publish(t, stockPublisher(t, undone, db.stockSchema(), false), topic, "undone")
		require.NoError(t, undone.Rollback())
		silent(t, msgs, 500*time.Millisecond)
	})
}

// A write transaction that stays open stalls nothing, whatever it wrote; watermill-sql waits for it.
func TestOpenTransactionStallsNothing(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		b, topic := declared(t, db, "g")
		conn := plain(t, db)
		execute(t, conn, `CREATE TABLE unrelated (n int)`)
		tx := begin(t, conn, sql.LevelDefault)
		_, err := tx.Exec(`INSERT INTO unrelated VALUES (1)`)
		require.NoError(t, err)
		publish(t, stockPublisher(t, tx, db.stockSchema(), false), topic, "of the open transaction")

		_, msgs := subscribe(t, b, broker.Subscription{Topic: topic, Group: "g"})
		for i := range 20 {
			publish(t, b.Publisher(), topic, fmt.Sprint(i))
			require.Equal(t, fmt.Sprint(i), ackAll(t, msgs, 1)[0])
		}

		// Many settled messages that the server cannot forget while the transaction is open.
		for range 20 {
			publish(t, b.Publisher(), topic, numbered(500)...)
			ackAll(t, msgs, 500)
		}
		publish(t, b.Publisher(), topic, "behind 10000 settled ones")
		ackAll(t, msgs, 1)
		require.NoError(t, tx.Commit())
		require.Equal(t, []string{"of the open transaction"}, ackAll(t, msgs, 1))
	})
}

// A claim takes what stands before and behind a message that a rival has locked, and does not wait for the rival.
func TestClaimPassesOverALockedMessage(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		b, topic := declared(t, db, "g")
		publish(t, b.Publisher(), topic, numbered(5)...)
		rival := begin(t, plain(t, db), sql.LevelReadCommitted)
		var offset int64
		require.NoError(t, rival.QueryRow(`SELECT max("offset") - 2 FROM oncemill_sql_deliveries`).Scan(&offset))
		require.NoError(t, rival.QueryRow(db.bind(`SELECT "offset" FROM oncemill_sql_deliveries WHERE "offset" = $1 AND queue = (SELECT id FROM oncemill_sql_queues) FOR UPDATE`), offset).Scan(&offset))

		_, msgs := subscribe(t, b, broker.Subscription{Topic: topic, Group: "g"})
		for _, payload := range []string{"m-0", "m-1", "m-3", "m-4"} {
			msg := within(t, msgs, 15*time.Second) // a lock would be waited for 20 s
			require.Equal(t, payload, string(msg.Payload))
			require.True(t, msg.Ack())
		}
		require.NoError(t, rival.Rollback())
		require.Equal(t, []string{"m-2"}, ackAll(t, msgs, 1))
	})
}

// A group that is declared while many publish, some with snapshots from before, gets each message once.
func TestGroupDeclaredInMidPublishing(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		b, topic := declared(t, db)
		const publishers, each = 4, 60
		old := begin(t, plain(t, db), sql.LevelRepeatableRead)
		require.NoError(t, old.QueryRow(`SELECT count(*) FROM oncemill_sql_queues`).Scan(new(int)))

		var wg sync.WaitGroup
		var half sync.WaitGroup
		half.Add(publishers)
		for p := range publishers {
			conn := plain(t, db)
			wg.Go(func() {
				for i := range each {
					tx, err := conn.BeginTx(context.Background(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
					if err == nil {
						var pub *wsql.Publisher
						pub, err = wsql.NewPublisher(tx, wsql.PublisherConfig{SchemaAdapter: db.stockSchema()}, nil)
						if err == nil {
							err = pub.Publish(topic, newMessage(fmt.Sprintf("p%d-%d", p, i)))
						}
						time.Sleep(time.Millisecond) // so that transactions are open when the group is declared
						if err == nil {
							err = tx.Commit()
						}
					}
					if err != nil {
						t.Errorf("publishing: %v", err)
					}
					if i == each/2 {
						half.Done()
					}
				}
			})
		}
		half.Wait()
		declare(t, b, topic, "later")
		publish(t, stockPublisher(t, old, db.stockSchema(), false), topic, "of an old snapshot")
		require.NoError(t, old.Commit())
		wg.Wait()
		_, msgs := subscribe(t, b, broker.Subscription{Topic: topic, Group: "later"})
		seen := map[string]int{}
		for _, payload := range ackAll(t, msgs, publishers*each+1) {
			seen[payload]++
		}
		require.Len(t, seen, publishers*each+1)
		require.Contains(t, seen, "of an old snapshot")
		silent(t, msgs, 300*time.Millisecond)
	})
}

// An ordered subscription, whose claims pass nothing over, does not wait for a publisher's open transaction either.
func TestOpenTransactionStallsNoOrder(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		b, topic := declared(t, db, "g")
		_, msgs := subscribe(t, b, broker.Subscription{Topic: topic, Group: "g", Ordered: true})
		tx := begin(t, plain(t, db), sql.LevelDefault)
		publish(t, stockPublisher(t, tx, db.stockSchema(), false), topic, "of the open transaction")
		publish(t, b.Publisher(), topic, "behind it")
		require.Equal(t, "behind it", string(within(t, msgs, 15*time.Second).Payload)) // a lock would be waited for 20 s
		require.NoError(t, tx.Commit())
		require.Equal(t, "of the open transaction", string(next(t, msgs).Payload))
	})
}

// The backlog of a new group comes once, also where it is filled in in several portions, by several replicas at once.
func TestLongBacklogOfANewGroup(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		b, topic := declared(t, db)
		const backlog = 3500
		publish(t, b.Publisher(), topic, numbered(backlog)...)
		var declaring sync.WaitGroup
		for range 3 {
			replica := open(t, config(db, nil))
			declaring.Go(func() {
				if err := replica.Declare(t.Context(), topic, subscriptions(topic, "later")); err != nil {
					t.Errorf("declaring: %v", err)
				}
			})
		}
		declaring.Wait()
		_, msgs := subscribe(t, b, broker.Subscription{Topic: topic, Group: "later"})
		require.ElementsMatch(t, numbered(backlog), ackAll(t, msgs, backlog))
		silent(t, msgs, 300*time.Millisecond)
	})
}
