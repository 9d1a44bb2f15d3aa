package scenario

import (
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/internal/testenv"
)

// keepKeys says where the keys are kept.
func (s *system) keepKeys(place string) {
	s.set("keys", place)
	switch place {
	case "redis":
		s.set("databases/redis", node{"url": testenv.Redis(s.t), "prefix": s.service + ":"})
	case "dynamodb":
		s.set("databases/dynamodb", node{"endpoint": testenv.DynamoDB(s.t).Endpoint, "region": "eu-central-1", "table": s.service + "-keys", "create": true})
	}
}

// checkKeys looks at what is left where the keys are kept besides the database: hints of what was handled there, and leases of letters.
func (s *system) checkKeys(least int) {
	s.t.Helper()
	var states map[string]int
	switch s.settings["keys"] {
	case "redis":
		states = s.keysInRedis()
	case "dynamodb":
		states = s.keysInDynamoDB()
		least = 0 // moto is slow beside other work, and then hints are paused: how many there are says nothing
	default:
		return
	}
	s.t.Logf("keys elsewhere: %v", states)
	// A killed process leaves its leases behind, also of letters that the database has recorded: as many as run at once.
	const killed, concurrency = 3, 16
	require.LessOrEqual(s.t, states["in_progress"], killed*concurrency)
	require.Greater(s.t, states["completed"], least)
}

func (s *system) keysInRedis() map[string]int {
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
	return states
}

func (s *system) keysInDynamoDB() map[string]int {
	s.t.Helper()
	states := map[string]int{}
	for _, item := range openTables(s.t, s.service+"-").items("keys") {
		state, ok := item["state"].(*types.AttributeValueMemberS)
		require.True(s.t, ok)
		states[state.Value]++
	}
	return states
}
