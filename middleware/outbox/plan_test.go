package outbox

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/oncemill/oncemill/middleware/envelope"
)

// TestPlanKeepsTheOrderOfEachKey: every record is in one batch of its topic; of each ordering key, a record is in a later wave than, or
// behind in the same batch as, every record before it; without ordered batches no batch has a key twice.
func TestPlanKeepsTheOrderOfEachKey(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		orderedBatch := rapid.Bool().Draw(t, "orderedBatch")
		n := rapid.IntRange(0, 40).Draw(t, "n")
		records := make([]Record, n)
		for i := range records {
			records[i] = Record{
				ID:          int64(i + 1),
				Topic:       rapid.SampledFrom([]string{"t", "u", "v"}).Draw(t, "topic"),
				OrderingKey: rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "key"),
			}
		}
		type place struct{ wave, batch, index int }
		places := map[int64]place{}
		for w, wave := range plan(records, orderedBatch) {
			require.NotEmpty(t, wave)
			topics := map[string]bool{}
			for b, batch := range wave {
				require.NotEmpty(t, batch.records)
				require.False(t, topics[batch.topic], "one batch for each topic of a wave")
				topics[batch.topic] = true
				seen := map[string]bool{}
				for i, rec := range batch.records {
					require.Equal(t, batch.topic, rec.Topic)
					require.False(t, !orderedBatch && rec.OrderingKey != "" && seen[rec.OrderingKey])
					seen[rec.OrderingKey] = true
					require.NotContains(t, places, rec.ID)
					places[rec.ID] = place{w, b, i}
				}
			}
		}
		require.Len(t, places, n)
		for i, rec := range records {
			for _, before := range records[:i] {
				if rec.OrderingKey == "" || rec.OrderingKey != before.OrderingKey {
					continue
				}
				a, b := places[before.ID], places[rec.ID]
				behind := a.wave < b.wave || a.wave == b.wave && a.batch == b.batch && a.index < b.index
				require.True(t, behind, "record %d at %+v, %d before it at %+v", rec.ID, b, before.ID, a)
			}
		}
	})
}

func TestPlanPutsUnorderedRecordsInOneWave(t *testing.T) {
	t.Parallel()
	var records []Record
	for i := range 50 {
		records = append(records, Record{ID: int64(i), Topic: fmt.Sprint("t", i%3)})
	}
	waves := plan(records, false)
	require.Len(t, waves, 1)
	require.Len(t, waves[0], 3)
}

func TestMessageLeavesTheRecordAlone(t *testing.T) {
	t.Parallel()
	rec := Record{UUID: "u", Key: "k", OrderingKey: "o", Payload: []byte("p"), Metadata: map[string]string{envelope.DeliverAtHeader: "x", "a": "b"}}
	msg := rec.Message()
	msg.Metadata.Set("c", "d")
	require.Equal(t, map[string]string{envelope.DeliverAtHeader: "x", "a": "b"}, rec.Metadata)
	require.Equal(t, "k", msg.Metadata.Get(envelope.KeyHeader))
	require.Equal(t, "o", msg.Metadata.Get(envelope.OrderingKeyHeader))
	require.Empty(t, msg.Metadata.Get(envelope.DeliverAtHeader))
}
