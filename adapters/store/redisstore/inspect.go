package redisstore

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/middleware/keystore"
)

// settings are those of one server that decide what it can lose. An empty one is not known.
type settings struct {
	policy    string // maxmemory-policy
	maxmemory string // "0" is no limit
	aof       string // "1" or "0"
	fsync     string // appendfsync; only CONFIG tells
	replicas  string // connected to it
}

// inspect asks every server for its settings. INFO tells most of them, also where a managed service forbids CONFIG.
func (s *Store) inspect(ctx context.Context) keystore.Capabilities {
	servers, err := s.ask(ctx)
	if err != nil {
		return keystore.Capabilities{Caveats: []string{
			"Redis did not answer at the start, so its eviction, persistence and replication are not known: duplicates cost a transaction until it does",
		}}
	}
	caps := keystore.Capabilities{Durable: true}
	var losses []string
	note := func(list *[]string, text string) {
		if !slices.Contains(*list, text) {
			*list = append(*list, text)
		}
	}
	for _, server := range servers {
		for _, loss := range server.losses() {
			note(&losses, loss)
		}
		for _, caveat := range server.caveats() {
			note(&caps.Caveats, caveat)
		}
		caps.Durable = caps.Durable && server.aof == "1" && server.fsync == "always"
	}
	if len(losses) > 0 && s.cfg.AllowLoss {
		for _, loss := range losses {
			note(&caps.Caveats, loss+" (allow_loss is set): a call under way can be made twice, whatever unknown_outcome says")
		}
	} else {
		caps.Forgets = strings.Join(losses, "; ")
	}
	return caps
}

// ask returns the settings of all servers that hold keys.
func (s *Store) ask(ctx context.Context) ([]settings, error) {
	cluster, ok := s.client.(*redis.ClusterClient)
	if !ok {
		one, err := askServer(ctx, s.client)
		return []settings{one}, err
	}
	var (
		mu  sync.Mutex
		all []settings
	)
	err := cluster.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error {
		one, err := askServer(ctx, c)
		mu.Lock()
		defer mu.Unlock()
		all = append(all, one)
		return err
	})
	return all, err
}

func askServer(ctx context.Context, c redis.Cmdable) (settings, error) {
	text, err := c.Info(ctx).Result()
	if err != nil {
		return settings{}, fmt.Errorf("ask Redis for its state: %w", err)
	}
	info := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, found := strings.Cut(strings.TrimSpace(line), ":"); found {
			info[name] = value
		}
	}
	server := settings{policy: info["maxmemory_policy"], maxmemory: info["maxmemory"], aof: info["aof_enabled"], replicas: info["connected_slaves"]}
	if fsync, err := c.ConfigGet(ctx, "appendfsync").Result(); err == nil {
		server.fsync = fsync["appendfsync"]
	}
	return server, nil
}

// losses are what makes the server lose keys in progress in ordinary operation.
func (s settings) losses() []string {
	var losses []string
	if strings.HasPrefix(s.policy, "allkeys-") {
		losses = append(losses, fmt.Sprintf("Redis evicts keys in progress when its memory is full (maxmemory-policy %s): set noeviction", s.policy))
	}
	if s.aof == "0" {
		losses = append(losses, "Redis loses keys in progress when it restarts (appendonly is off): set appendonly yes")
	}
	return losses
}

// caveats are what is left to say of the server.
func (s settings) caveats() []string {
	caveats := []string{
		"a lease that Redis loses (FLUSHALL, a failover to a replica that had not received it) while a call is under way, or after its process died: the call can be made twice, " +
			"under the same downstream key and whatever unknown_outcome says; its rows still commit once",
	}
	if strings.HasPrefix(s.policy, "volatile-") {
		caveats = append(caveats, fmt.Sprintf("Redis may evict completed keys before their time (maxmemory-policy %s): their copies cost a transaction", s.policy))
	}
	if s.policy == "noeviction" && s.maxmemory != "" && s.maxmemory != "0" {
		caveats = append(caveats, "Redis refuses to write when its memory is full (maxmemory-policy noeviction): external handlers wait until it has room")
	}
	if s.aof == "1" && s.fsync != "always" {
		caveats = append(caveats, fmt.Sprintf("Redis may lose the leases of the last seconds with its machine (appendfsync %s)", orUnknown(s.fsync)))
	}
	if s.replicas != "" && s.replicas != "0" {
		caveats = append(caveats, "Redis has replicas, which receive keys after they are confirmed: a failover can lose the latest leases")
	}
	if s.policy == "" || s.aof == "" {
		caveats = append(caveats, "Redis does not tell its maxmemory-policy and appendonly: whether it evicts keys in progress, or loses them with a restart, is not known")
	}
	return caveats
}

func orUnknown(s string) string {
	if s == "" {
		return "is not known: the server forbids CONFIG"
	}
	return s
}
