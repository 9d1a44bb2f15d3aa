package scenario

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/internal/testenv"
)

// TestOrderIsKeptForEachKey handles 20,000 messages over 50 ordering keys on two replicas, of which two in a hundred fail once:
// each key's messages are handled in the order in which they were sent.
func TestOrderIsKeptForEachKey(t *testing.T) {
	for _, combination := range [][2]string{{"embedded", "postgres"}, {"kafka", "postgres"}} {
		t.Run(combination[0], func(t *testing.T) {
			t.Parallel()
			const messages, keys = 20_000, 50
			s := newSystem(t, combination[0], combination[1])
			s.set("bindings/sequence/concurrency", 16)
			s.write()
			a, b := s.replica("a", true), s.replica("b", true)
			a.start()
			a.ready()
			b.start()
			b.ready()

			var events []event
			for n := range messages {
				key := fmt.Sprintf("key-%02d", n%keys)
				body := fmt.Sprintf("%s %d", key, n/keys)
				if n%50 == n/keys%50 {
					body += " fails-once"
				}
				events = append(events, event{topic: sequenceTopic, key: fmt.Sprintf("%s-%d", key, n/keys), ordering: key, body: body})
			}
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
			defer cancel()
			producer := s.open()
			require.NoError(t, send(ctx, producer, events))

			db := s.db()
			testenv.Eventually(t, 5*time.Minute, func() error {
				return expect(number(t, db, `SELECT count(*) FROM processed_events WHERE scope LIKE '%/sequence' AND status = 'completed'`), messages, "messages handled")
			})
			require.Zero(t, number(t, db, `SELECT count(*) FROM parked WHERE state <> 'waiting'`))
			next := map[string]int{}
			for _, line := range s.lines() {
				key, text, _ := strings.Cut(line, " ")
				var n int
				_, err := fmt.Sscan(text, &n)
				require.NoError(t, err, line)
				if n == next[key]-1 {
					continue // a run that was rolled back, and its repetition
				}
				require.Equal(t, next[key], n, "%s was handled out of order", key)
				next[key]++
			}
			for key, n := range next {
				require.Equal(t, messages/keys, n, "messages of %s", key)
			}
		})
	}
}
