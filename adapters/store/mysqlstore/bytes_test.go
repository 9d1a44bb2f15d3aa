package mysqlstore_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/store"
	"github.com/oncemill/oncemill/adapters/store/mysqlstore"
	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/outbox"
	"github.com/oncemill/oncemill/middleware/parking"
)

// TestF015KeysCompareByteByByte: whatever the database's character set and collation.
func TestF015KeysCompareByteByByte(t *testing.T) {
	t.Parallel()
	keys := []string{
		"order-1", "Order-1", "ORDER-1", "order-1 ", " order-1", "\u00f6rd\u00e9r-1", "o\u0308rde\u0301r-1", "order-1\u200b",
		"stra\u00dfe", "strasse", "\ufb01n", "fin", "\u00c5", "\u212b", "\U0001f600", "\U0001f601", "?", "a%", "a_", `a\`, `a'b`, strings.Repeat("k", 255),
	}
	for _, options := range []string{"", "CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci", "CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci", "CHARACTER SET latin1", "CHARACTER SET ucs2"} {
		t.Run(options, func(t *testing.T) {
			t.Parallel()
			_, s := newWorld(t, options)
			claims := make([]keystore.Claim, len(keys))
			done := make([]keystore.Completion, len(keys))
			for i, key := range keys {
				claims[i] = claimOf(key)
				result, err := json.Marshal(key)
				require.NoError(t, err)
				done[i] = keystore.Completion{Claim: claims[i], State: keystore.Completed, Retention: time.Hour, Result: append([]byte("  "), result...)}
			}
			tx := begin(t, s, keystore.TxOptions{})
			verdicts, err := tx.Claim(t.Context(), claims)
			require.NoError(t, err)
			for i, v := range verdicts {
				require.Equal(t, keystore.Fresh, v.Outcome, "%q", keys[i])
			}
			require.NoError(t, tx.Commit(t.Context(), done))
			verdicts, err = begin(t, s, keystore.TxOptions{}).Claim(t.Context(), claims)
			require.NoError(t, err)
			for i, v := range verdicts {
				require.Equal(t, keystore.Duplicate, v.Outcome, "%q", keys[i])
				require.Equal(t, keys[i], v.Record.Key)
				require.Equal(t, string(done[i].Result), string(v.Record.Result), "byte by byte, blanks as well")
			}
			parkEach(t, s, keys)
		})
	}
}

// parkEach parks a message for each key and finds each again.
func parkEach(t *testing.T, s *mysqlstore.Store, keys []string) {
	t.Helper()
	var rows []parking.Row
	for _, key := range keys {
		rows = append(rows, parking.Row{State: parking.Waiting, Scope: "s", Topic: "t", Key: key, Payload: []byte(key), Reason: "r", DueIn: time.Hour})
	}
	require.NoError(t, s.Parking().Park(t.Context(), rows))
	for _, key := range keys {
		found, err := s.Parking().List(t.Context(), parking.Filter{Key: key})
		require.NoError(t, err)
		require.Len(t, found, 1, "%q", key)
		require.Equal(t, key, string(found[0].Payload))
	}
}

// TestScopeThatDoesNotFit is refused: cut, it would be another one.
func TestScopeThatDoesNotFit(t *testing.T) {
	t.Parallel()
	_, s := newWorld(t)
	tx := begin(t, s, keystore.TxOptions{})
	_, err := tx.Claim(t.Context(), []keystore.Claim{{ID: keystore.ID{Scope: strings.Repeat("s", 1025), Key: "k"}}})
	require.Error(t, err)
	require.Equal(t, keystore.FaultOther, s.Keys().Classify(err))
}

// TestLargePayloads: more than one packet of the server takes in one statement, with bytes that need an escape.
func TestLargePayloads(t *testing.T) {
	t.Parallel()
	_, s := newWorld(t)
	var packet int
	require.NoError(t, s.DB().Get(&packet, `SELECT @@max_allowed_packet`))
	payload := bytes.Repeat([]byte{0, '\'', '\\', 0xff}, 1<<20/4)
	var records []outbox.Record
	for i := range packet/len(payload) + 3 {
		records = append(records, outbox.Record{Topic: "t", UUID: fmt.Sprint(i), Key: fmt.Sprint(i), OrderingKey: "o", Payload: payload, Metadata: map[string]string{"a": "b"}})
	}
	tx := begin(t, s, keystore.TxOptions{})
	require.Equal(t, keystore.Fresh, claimKey(t, tx, "a"))
	done := completed("a")
	done[0].Outbox = records
	done[0].Result = json.RawMessage(`"` + strings.Repeat(`\\\"`, keystore.MaxResult/4-1) + `"`)
	require.NoError(t, tx.Commit(t.Context(), done))
	require.Equal(t, string(done[0].Result), string(peek(t, s, "a").Result))
	list, err := s.Outbox().List(t.Context(), false, 100)
	require.NoError(t, err)
	require.Len(t, list, len(records))
	for i, r := range list {
		require.Equal(t, records[i].UUID, r.UUID, "in the order in which they were written")
		require.True(t, bytes.Equal(payload, r.Payload))
	}
}

// TestTimesDoNotFollowTheServersZone: a session in another time zone reads and writes the same times.
func TestTimesDoNotFollowTheServersZone(t *testing.T) {
	t.Parallel()
	w, s := newWorld(t)
	other, err := mysqlstore.Open(t.Context(), mysqlstore.Config{DSN: w.db.DSN + "?time_zone=%27-09%3A30%27&loc=America%2FSt_Johns"}, store.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, other.Close()) })
	tx := begin(t, other, keystore.TxOptions{})
	require.Equal(t, keystore.Fresh, claimKey(t, tx, "a"))
	done := completed("a")
	at := time.Now().Add(90 * time.Minute).UTC().Round(time.Microsecond)
	done[0].Outbox = []outbox.Record{{Topic: "t", UUID: "u", Key: "k", DeliverAt: at}}
	require.NoError(t, tx.Commit(context.Background(), done))
	require.WithinDuration(t, time.Now(), peek(t, s, "a").ProcessedAt, time.Minute)
	list, err := s.Outbox().List(t.Context(), false, 1)
	require.NoError(t, err)
	require.True(t, at.Equal(list[0].DeliverAt), "%v: %v", at, list[0].DeliverAt)
}
