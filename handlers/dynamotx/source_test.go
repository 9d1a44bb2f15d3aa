package dynamotx_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/handlers/dynamotx"
	"github.com/oncemill/oncemill/handlers/internal/dynamotest"
	"github.com/oncemill/oncemill/middleware/outbox"
)

const lease = 10 * time.Minute

// write commits records of one ordering key with payloads of some bytes.
func (b *bell) write(n, size int) {
	b.t.Helper()
	var records []outbox.Record
	for i := range n {
		records = append(records, outbox.Record{Topic: "letters", UUID: "u-" + itoa(i), OrderingKey: "k", Payload: []byte(strings.Repeat(itoa(i), size))})
	}
	commit, err := b.db.Begin(b.t.Context(), records)
	require.NoError(b.t, err)
	require.NoError(b.t, commit(b.t.Context()))
}

// acquire takes lanes for an owner.
func acquire(t *testing.T, source outbox.Source, owner string) []outbox.Lane {
	t.Helper()
	lanes, err := source.AcquireLanes(t.Context(), owner, lease)
	require.NoError(t, err)
	return lanes
}

// read reads what is due in the lanes of which some is.
func read(t *testing.T, source outbox.Source, lanes []outbox.Lane) (lane outbox.Lane, records []outbox.Record) {
	t.Helper()
	for _, l := range lanes {
		found, err := source.Fetch(t.Context(), l, 100)
		require.NoError(t, err)
		if len(found) > 0 {
			lane, records = l, append(records, found...)
		}
	}
	return lane, records
}

func ids(records []outbox.Record) (all []int64) {
	for _, r := range records {
		all = append(all, r.ID)
	}
	return all
}

// items are those of the outbox table that are of records or their payloads.
func (b *bell) items() (found []dynamotest.Item) {
	for _, item := range b.Items(b.db.Name("outbox")) {
		if item["topic"] != nil || item["payload"] != nil {
			found = append(found, item)
		}
	}
	return found
}

// A payload that does not fit into its record goes with it.
func TestLargePayloadsLeaveNothingBehind(t *testing.T) {
	b := newBell(t)
	source := b.db.Outbox()
	lanes := acquire(t, source, "a")
	b.write(3, 600<<10)
	require.Len(t, b.items(), 3*(1+3))
	lane, records := read(t, source, lanes)
	require.Len(t, records, 3)
	for i, r := range records {
		require.Equal(t, strings.Repeat(itoa(i), 600<<10), string(r.Payload))
	}
	require.NoError(t, source.Failed(t.Context(), lane, []outbox.Failure{{ID: records[0].ID, Aside: true}, {ID: records[1].ID, Aside: true}}))
	n, err := source.Drop(t.Context(), ids(records[:1]))
	require.NoError(t, err)
	require.Equal(t, 1, n)
	n, err = source.Retry(t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	_, again := read(t, source, lanes)
	require.Equal(t, ids(records[1:]), ids(again))
	require.Equal(t, records[1].Payload, again[0].Payload)
	require.NoError(t, source.Done(t.Context(), lane, ids(again)))
	require.Empty(t, b.items())
}

// A record whose payload somebody damaged is not published, shows why, and holds back nothing.
func TestDamagedPayload(t *testing.T) {
	b := newBell(t)
	source := b.db.Outbox()
	lanes := acquire(t, source, "a")
	b.write(2, 300<<10)
	_, before := read(t, source, lanes)
	require.Len(t, before, 2)
	for _, item := range b.items() {
		if item["topic"] == nil && strings.HasSuffix(dynamotest.Text(item, "lane"), itoa(int(before[0].ID))) && dynamotest.Text(item, "record") == "01" {
			_, err := b.Client().DeleteItem(t.Context(), deletion(b.db.Name("outbox"), item))
			require.NoError(t, err)
		}
	}
	_, records := read(t, source, lanes)
	require.Equal(t, ids(before[1:]), ids(records))
	list, err := source.List(t.Context(), false, 10)
	require.NoError(t, err)
	require.Contains(t, list[0].Reason, "removed")
	require.Empty(t, list[1].Reason)
}

func deletion(table string, item dynamotest.Item) *dynamodb.DeleteItemInput {
	return &dynamodb.DeleteItemInput{TableName: &table, Key: dynamotest.Item{"lane": item["lane"], "record": item["record"]}}
}

// Answers that are lost, and other writers in the way, cost time only. (The service knows the token of a transaction that it has made before; the
// emulator makes it again, so that conditions which held do not any more.)
func TestLostAnswersOfARelay(t *testing.T) {
	b := newBell(t)
	source := b.db.Outbox()
	b.Lose(dynamotest.Transact, 1)
	acquire(t, source, "a")
	lanes := acquire(t, source, "a")
	require.Len(t, lanes, outbox.Lanes)
	b.write(2, 1)
	lane, records := read(t, source, lanes)
	require.Len(t, records, 2)

	b.Lose(dynamotest.Transact, 1)
	require.NoError(t, source.Failed(t.Context(), lane, []outbox.Failure{{ID: records[0].ID}}))
	list, err := source.List(t.Context(), false, 10)
	require.NoError(t, err)
	require.Positive(t, list[0].Attempts)

	b.Refuse(dynamotest.Transact, dynamotest.Answer{Code: "TransactionCanceledException", Reasons: []string{"TransactionConflict", "None"}})
	require.NoError(t, source.Failed(t.Context(), lane, []outbox.Failure{{ID: records[0].ID, Aside: true}}))
	b.Lose(dynamotest.Transact, 1)
	require.NoError(t, source.Done(t.Context(), lane, ids(records[1:])))
	b.Lose(dynamotest.Transact, 1)
	_, err = source.Drop(t.Context(), ids(records))
	require.NoError(t, err)
	require.Empty(t, b.items())
}

// Leases end by the service's clock, however it stands to this machine's. A relay whose lease is over is one that never was: it gets its lanes with other
// tokens, and none while another has them.
func TestARelayThatWasAwayForLong(t *testing.T) {
	b := newBell(t)
	b.Advance(1000 * time.Hour)
	source, other := b.db.Outbox(), dynamotx.New(b.cfg).Outbox()
	first := acquire(t, source, "away")
	require.Len(t, first, outbox.Lanes)
	b.write(1, 1)
	lane, records := read(t, source, first)
	require.Len(t, records, 1)

	b.Advance(lease - time.Minute)
	require.Empty(t, acquire(t, other, "next"), "its share is not free yet")
	require.NoError(t, other.ReleaseLanes(t.Context(), "next"))
	b.Advance(2 * time.Minute)
	_, err := other.Status(t.Context()) // learns the time
	require.NoError(t, err)
	require.Len(t, acquire(t, other, "next"), outbox.Lanes)

	require.ErrorIs(t, source.Done(t.Context(), lane, ids(records)), outbox.ErrLaneLost)
	require.Empty(t, acquire(t, source, "away"), "all are the other's")
	require.Len(t, acquire(t, other, "next"), outbox.Lanes/2, "who comes back has its share")
	back := acquire(t, source, "away")
	require.Len(t, back, outbox.Lanes/2)
	for _, l := range back {
		require.NotContains(t, first, l)
	}
	require.Len(t, b.items(), 1)
}

// A relay that renews in the very moment in which another finds its lease over keeps its lanes.
func TestARenewalIsFasterThanATakeover(t *testing.T) {
	b := newBell(t)
	source, other := b.db.Outbox(), dynamotx.New(b.cfg).Outbox()
	first := acquire(t, source, "a")
	b.Advance(lease + time.Minute)
	_, err := other.Status(t.Context())
	require.NoError(t, err)
	_, err = source.Status(t.Context())
	require.NoError(t, err)
	b.Before("DeleteItem", func(n int) {
		if n == 1 {
			_, err := source.AcquireLanes(context.Background(), "a", lease)
			require.NoError(t, err) //nolint:testifylint // the test waits for it
		}
	})
	require.Empty(t, acquire(t, other, "b"))
	for _, l := range first[:outbox.Lanes/2] {
		_, err := source.Fetch(t.Context(), l, 1)
		require.NoError(t, err)
	}
}

// Of two relays that find the same lanes free each lane has one.
func TestTwoRelaysFindTheSameLanesFree(t *testing.T) {
	b := newBell(t)
	source, other := b.db.Outbox(), dynamotx.New(b.cfg).Outbox()
	for _, name := range []string{"never held", "released"} {
		var rivals []outbox.Lane
		at := b.Count(dynamotest.Transact) + 1
		b.Before(dynamotest.Transact, func(n int) {
			if n == at {
				rivals = acquire(t, other, "rival") //nolint:testifylint // the test waits for it
			}
		})
		mine := acquire(t, source, "mine")
		require.Len(t, rivals, outbox.Lanes/2, name)
		require.Len(t, mine, outbox.Lanes/2, name)
		for _, l := range rivals {
			_, err := other.Fetch(t.Context(), l, 1)
			require.NoError(t, err, "%s: lane %d was taken from its holder", name, l.Number)
		}
		require.NoError(t, source.ReleaseLanes(t.Context(), "mine"))
		require.NoError(t, other.ReleaseLanes(t.Context(), "rival"))
	}
}

// A commit of two processes gives no id twice, also where somebody emptied the counters.
func TestIDsAreNotGivenTwice(t *testing.T) {
	b := newBell(t)
	b.write(2, 1)
	for _, item := range b.Items(b.db.Name("outbox")) {
		if strings.HasSuffix(dynamotest.Text(item, "lane"), "#count") {
			_, err := b.Client().DeleteItem(t.Context(), deletion(b.db.Name("outbox"), item))
			require.NoError(t, err)
		}
	}
	_, err := call(t, b.handler(planOf(dynamotx.Writes{
		Items: []types.TransactWriteItem{b.ring("")}, Outgoing: []dynamotx.Outgoing{{Topic: "letters", Payload: ordered("k")}},
	})).External())
	require.NoError(t, err)
	require.Equal(t, 1, b.rung())
	require.Len(t, b.records(), 3)
}
