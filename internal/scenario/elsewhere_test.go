package scenario

import (
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// checkRedis looks at the keys that the main road left in Redis: hints for payments, counters and journal, and the leases of the letters.
func (s *system) checkRedis() {
	t := s.t
	t.Helper()
	settings := s.settings["databases"].(node)["redis"].(node)
	opts, err := redis.ParseURL(settings["url"].(string))
	require.NoError(t, err)
	client := redis.NewClient(opts)
	defer func() { require.NoError(t, client.Close()) }()
	keys, err := client.Keys(t.Context(), settings["prefix"].(string)+"*").Result()
	require.NoError(t, err)
	states := map[string]int{}
	for _, key := range keys {
		state, err := client.HGet(t.Context(), key, "state").Result()
		require.NoError(t, err)
		states[state]++
	}
	t.Logf("keys in Redis: %v", states)
	// A killed process leaves its leases behind, also of letters that the database has recorded: as many as run at once.
	const killed, concurrency = 3, 16
	require.LessOrEqual(t, states["in_progress"], killed*concurrency)
	require.Greater(t, states["completed"], 1000)
}
