package sqlbroker_test

import (
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/outbox"
)

// A plain Watermill publisher writes to our topics, and a plain Watermill subscriber reads them beside our groups.
func TestInteropWithPlainWatermill(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		b, topic := declared(t, db, "g")
		conn := plain(t, db)
		theirs := stockPublisher(t, conn, db.stockSchema(), true)
		foreign, ours := newMessage("\x00of theirs\xff"), newMessage("\x00of ours\xff")
		foreign.Metadata.Set("name", "v<Ä>")
		ours.Metadata.Set("name", "v<Ä>")
		require.NoError(t, theirs.Publish(topic, foreign))
		require.NoError(t, b.Publisher().Publish(topic, ours))

		_, msgs := subscribe(t, b, broker.Subscription{Topic: topic, Group: "g"})
		read := func(msgs <-chan *message.Message) map[string]*message.Message {
			all := map[string]*message.Message{}
			for range 2 {
				msg := next(t, msgs)
				all[msg.UUID] = msg
				require.True(t, msg.Ack())
			}
			return all
		}
		here := read(msgs)
		require.True(t, foreign.Equals(here[foreign.UUID]))
		require.True(t, ours.Equals(here[ours.UUID]))

		plainly, err := stockSubscriber(t, db, "theirs").Subscribe(t.Context(), topic)
		require.NoError(t, err)
		there := read(plainly)
		require.True(t, foreign.Equals(there[foreign.UUID]))
		require.True(t, ours.Equals(there[ours.UUID]))

		// Nothing tells us of theirs but polling.
		publish(t, theirs, topic, "later")
		require.Equal(t, []string{"later"}, ackAll(t, msgs, 1))
	})
}

func TestInteropWithJSONPayloads(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		topic := testenv.Name(t, "t")
		conn := plain(t, db)
		theirs := stockPublisher(t, conn, db.jsonSchema(), true)
		publish(t, theirs, topic, `{"n": 1}`)
		b := open(t, config(db, nil))
		declare(t, b, topic, "g")
		batch := []*message.Message{newMessage(`{"n": 2}`), newMessage(`{"n": `), newMessage(`{"n": 3}`)}
		for _, i := range []int{1, 2} {
			batch[i].Metadata.Set(envelope.OrderingKeyHeader, "k")
		}
		batch = append(batch, newMessage(`{"n": 4}`))
		errs := b.Publisher().PublishBatch(t.Context(), topic, batch)
		require.NoError(t, errs[0])
		require.ErrorIs(t, errs[1], outbox.ErrUnpublishable)
		require.Error(t, errs[2], "an earlier message of its ordering key was refused")
		require.NoError(t, errs[3])
		_, msgs := subscribe(t, b, broker.Subscription{Topic: topic, Group: "g"})
		require.Equal(t, []string{`{"n": 1}`, `{"n": 2}`, `{"n": 4}`}, ackAll(t, msgs, 3))
	})
}

// Topics that differ only in their last character, or in case, have tables of their own; a table that is something else is refused.
func TestTopicsNeverShareATable(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		b := open(t, config(db, nil))
		stem := strings.Repeat("t", envelope.MaxTopic-1)
		for _, topic := range []string{stem + "1", stem + "2", "Case", "case", "a.b", "a_b", "a-b"} {
			declare(t, b, topic, "g")
			publish(t, b.Publisher(), topic, topic)
		}
		for _, topic := range []string{stem + "1", stem + "2", "Case", "case", "a.b", "a_b", "a-b"} {
			s, msgs := subscribe(t, b, broker.Subscription{Topic: topic, Group: "g"})
			require.Equal(t, []string{topic}, ackAll(t, msgs, 1))
			silent(t, msgs, 50*time.Millisecond)
			require.NoError(t, s.Close())
		}

		_, err := stockSubscriber(t, db, "theirs").Subscribe(t.Context(), "x")
		require.NoError(t, err)
		err = b.Declare(t.Context(), "offsets_x", subscriptions("offsets_x", "g"))
		require.ErrorContains(t, err, "no message table")
		require.Error(t, b.Publisher().Publish("offsets_x", newMessage("p")))
	})
}

// Metadata that other producers wrote as JSON of any kind makes no message unreadable.
func TestForeignMetadata(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		b, topic := declared(t, db, "g")
		conn := plain(t, db)
		insert := db.insert(topic)
		execute(t, conn, insert, "u", "p", `{"text": "t", "number": 12.50, "null": null, "bool": true, "list": [1], "object": {"a": 1}, "nul": "a\u0000b"}`)
		execute(t, conn, insert, "u", "p", `[1, 2]`)
		_, msgs := subscribe(t, b, broker.Subscription{Topic: topic, Group: "g"})
		first := next(t, msgs)
		require.Equal(t, message.Metadata{"text": "t", "number": "12.50", "nul": "a\x00b"}, first.Metadata)
		require.Equal(t, map[string]string{"null": "null", "bool": "bool", "list": "array", "object": "table"}, envelope.DeliveryFrom(first.Context()).Apart)
		require.True(t, first.Ack())
		second := next(t, msgs)
		require.Empty(t, second.Metadata)
		require.NotEmpty(t, envelope.DeliveryFrom(second.Context()).Apart)
		require.True(t, second.Ack())
	})
}
