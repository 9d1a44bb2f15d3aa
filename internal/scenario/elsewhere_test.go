package scenario

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/internal/testenv"
)

// TestEveryPaymentExactlyOnceWithKeysInRedis is the main road with keys in Redis too: hints for payments, counters and journal, the leases of
// the letters. A replica is killed three times as there.
func TestEveryPaymentExactlyOnceWithKeysInRedis(t *testing.T) {
	for _, one := range []struct{ broker, database string }{{"embedded", "sqlite"}, {"rabbitmq-quorum", "postgres"}} {
		t.Run(one.broker+"/"+one.database, func(t *testing.T) {
			s := newSystem(t, one.broker, one.database)
			url, prefix := testenv.Redis(t), s.service+":"
			s.set("keys", "redis")
			s.set("databases/redis", node{"url": url, "prefix": prefix})
			s.everyPaymentExactlyOnce()

			opts, err := redis.ParseURL(url)
			require.NoError(t, err)
			client := redis.NewClient(opts)
			defer func() { require.NoError(t, client.Close()) }()
			keys, err := client.Keys(context.Background(), prefix+"*").Result()
			require.NoError(t, err)
			states := map[string]int{}
			for _, key := range keys {
				state, err := client.HGet(context.Background(), key, "state").Result()
				require.NoError(t, err)
				states[state]++
			}
			t.Logf("keys in Redis: %v", states)
			// A killed process leaves its leases behind, also of letters that the database has recorded: as many as run at once.
			const killed, concurrency = 3, 16
			require.LessOrEqual(t, states["in_progress"], killed*concurrency)
			require.Greater(t, states["completed"], 1000)
		})
	}
}
