package sqlbroker_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/adapters/broker/sqlbroker"
	"github.com/oncemill/oncemill/internal/testenv"
)

// A message is deleted when every group has settled it, and its retention has passed.
func TestSettledMessagesAreDeleted(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		b := open(t, config(db, func(c *sqlbroker.Config) { c.Retention = 0 }))
		topic := testenv.Name(t, "t")
		declare(t, b, topic, "one", "two")
		conn := plain(t, db)
		publish(t, b.Publisher(), topic, numbered(2500)...)
		_, one := subscribe(t, b, broker.Subscription{Topic: topic, Group: "one"})
		ackAll(t, one, 2500)
		left := `SELECT count(*) FROM "watermill_` + topic + `"`
		time.Sleep(1500 * time.Millisecond) // more than one clean-up
		require.Equal(t, 2500, count(t, conn, left), "the second group has not settled them")

		_, two := subscribe(t, b, broker.Subscription{Topic: topic, Group: "two"})
		held := next(t, two)
		ackAll(t, two, 2499)
		reaches := func(n int) func() error {
			return func() error {
				if got := count(t, conn, left); got != n {
					return fmt.Errorf("%d messages are left, want %d", got, n)
				}
				return nil
			}
		}
		testenv.Eventually(t, patience, reaches(1))
		require.True(t, held.Ack())
		testenv.Eventually(t, patience, reaches(0))
	})
}

func TestRetentionKeepsSettledMessages(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		b := open(t, config(db, func(c *sqlbroker.Config) { c.Retention = 4 * time.Second }))
		topic := testenv.Name(t, "t")
		declare(t, b, topic, "g")
		published := time.Now()
		publish(t, b.Publisher(), topic, "p")
		_, msgs := subscribe(t, b, broker.Subscription{Topic: topic, Group: "g"})
		ackAll(t, msgs, 1)
		conn := plain(t, db)
		testenv.Eventually(t, patience, func() error {
			if count(t, conn, `SELECT count(*) FROM "watermill_`+topic+`"`) > 0 {
				return fmt.Errorf("the message is still there")
			}
			return nil
		})
		require.GreaterOrEqual(t, time.Since(published), 4*time.Second)
	})
}

// With topology verify nothing is made, and what is missing is told; a disabled or dropped trigger is missing too.
func TestTopologyVerify(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		verify := open(t, config(db, func(c *sqlbroker.Config) { c.Topology = sqlbroker.Verify }))
		topic := testenv.Name(t, "t")
		subs := subscriptions(topic, "g")
		require.ErrorContains(t, verify.Declare(t.Context(), topic, subs), "has no table")
		require.ErrorContains(t, verify.Publisher().Publish(topic, newMessage("p")), "has no table")
		sub, _ := subscribe(t, verify, subs[0])
		testenv.Eventually(t, patience, func() error {
			if err := sub.Consuming(); err == nil || err.Error() == "sql: subscription is starting" {
				return fmt.Errorf("consuming: %v", err)
			}
			return nil
		})
		conn := plain(t, db)
		require.Zero(t, count(t, conn, db.bind(`SELECT count(*) FROM information_schema.tables WHERE table_schema = $1`), db.schema))

		declarer := open(t, config(db, nil))
		declare(t, declarer, topic)
		require.ErrorContains(t, verify.Declare(t.Context(), topic, subs), "has no queue")
		declare(t, declarer, topic, "g")
		require.NoError(t, verify.Declare(t.Context(), topic, subs))
		testenv.Eventually(t, patience, sub.Consuming)
		db.disable(t, conn, topic)
		require.ErrorContains(t, verify.Declare(t.Context(), topic, subs), "has no queue")
	})
}

// A topic's table that was dropped is made again, with its queues, and nothing of the old one is left in them.
func TestDroppedTableIsMadeAgain(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		b, topic := declared(t, db, "g")
		publish(t, b.Publisher(), topic, numbered(5)...)
		_, msgs := subscribe(t, b, broker.Subscription{Topic: topic, Group: "g", InFlight: 1})
		ackAll(t, msgs, 1)
		held := next(t, msgs)
		execute(t, plain(t, db), `DROP TABLE "watermill_`+topic+`"`)
		publish(t, b.Publisher(), topic, "new")
		held.Ack()
		require.Equal(t, []string{"new"}, ackAll(t, msgs, 1))
	})
}
