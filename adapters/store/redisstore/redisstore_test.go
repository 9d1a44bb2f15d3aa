package redisstore_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/store/redisstore"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/keystore/keystoretest"
)

func client(t *testing.T, url string) *redis.Client {
	t.Helper()
	opts, err := redis.ParseURL(url)
	require.NoError(t, err)
	c := redis.NewClient(opts)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// A cluster of one server has every rule of a larger one: slots, and no script over two of them.
func TestCluster(t *testing.T) {
	t.Parallel()
	server := testenv.PrivateRedis(t, "--cluster-enabled yes")
	c := client(t, server.Address)
	require.NoError(t, c.ClusterAddSlotsRange(t.Context(), 0, 16383).Err())
	testenv.Eventually(t, time.Minute, func() error { return c.Set(t.Context(), "ready", 1, 0).Err() })
	keystoretest.RunElsewhere(t, harness(redisstore.Config{Cluster: []string{c.Options().Addr}}))
}

// F048: the start names what the server can lose, and an external handler that relies on its lease is refused there.
func TestF048TheServersSettingsAreNamed(t *testing.T) {
	t.Parallel()
	for _, one := range []struct {
		name, options, forgets, caveat string
		durable                        bool
	}{
		{name: "safe", options: "--appendfsync always", durable: true},
		{name: "every second", options: "", caveat: "appendfsync everysec"},
		{name: "evicts everything", options: "--maxmemory-policy allkeys-lru", forgets: "maxmemory-policy allkeys-lru"},
		{name: "evicts what has a time to live", options: "--maxmemory-policy volatile-lru", caveat: "maxmemory-policy volatile-lru"},
		{name: "no persistence", options: "--appendonly no", forgets: "appendonly is off"},
		{name: "bounded memory", options: "--maxmemory 64mb", caveat: "memory is full"},
		{name: "no CONFIG", options: "--rename-command CONFIG nothing", caveat: "forbids CONFIG"},
	} {
		t.Run(one.name, func(t *testing.T) {
			t.Parallel()
			server := testenv.PrivateRedis(t, one.options)
			caps := open(t, redisstore.Config{URL: server.Address}).Capabilities()
			require.Equal(t, one.durable, caps.Durable)
			if one.forgets == "" {
				require.Empty(t, caps.Forgets)
			}
			require.Contains(t, caps.Forgets, one.forgets)
			require.Contains(t, join(caps.Caveats), one.caveat)
			require.Contains(t, join(caps.Caveats), "FLUSHALL")

			accepted := open(t, redisstore.Config{URL: server.Address, AllowLoss: true}).Capabilities()
			require.Empty(t, accepted.Forgets)
			require.Contains(t, join(accepted.Caveats), one.forgets, "accepted, and still said")
		})
	}
}

func join(texts []string) string {
	all := ""
	for _, text := range texts {
		all += text + "\n"
	}
	return all
}

// A key in progress has no time to live, so that no policy but allkeys-* evicts it; a completed one has its retention.
func TestTimeToLive(t *testing.T) {
	t.Parallel()
	url, prefix := testenv.Redis(t), testenv.Name(t, "ttl")+":"
	s, c := open(t, redisstore.Config{URL: url, Prefix: prefix}), client(t, url)
	claim := keystore.Claim{ID: keystore.ID{Scope: "svc/a", Key: "k"}, Epoch: "e"}
	left := func() time.Duration {
		keys, err := c.Keys(t.Context(), prefix+"*").Result()
		require.NoError(t, err)
		require.Len(t, keys, 1)
		require.Contains(t, keys[0], ":5:svc/a:k")
		ttl, err := c.PTTL(t.Context(), keys[0]).Result()
		require.NoError(t, err)
		return ttl
	}
	verdicts, err := s.Acquire(t.Context(), "one", []keystore.Claim{claim}, time.Second)
	require.NoError(t, err)
	require.Negative(t, left())
	claim.Token = verdicts[0].Token
	done := keystore.Completion{Claim: claim, State: keystore.Completed, Retention: time.Hour}
	require.NoError(t, s.Complete(t.Context(), []keystore.Completion{done}))
	require.InDelta(t, time.Hour, left(), float64(5*time.Minute))
	require.NoError(t, s.Complete(t.Context(), []keystore.Completion{done}), "a completion recognises itself: its answer was lost")
}

// F030: a full server is unavailable, and takes nothing half.
func TestF048FullServerIsUnavailable(t *testing.T) {
	t.Parallel()
	server := testenv.PrivateRedis(t, "")
	s, c := open(t, redisstore.Config{URL: server.Address}), client(t, server.Address)
	require.NoError(t, c.ConfigSet(t.Context(), "maxmemory", "1").Err())
	_, err := s.Acquire(t.Context(), "one", []keystore.Claim{{ID: keystore.ID{Scope: "s", Key: "k"}}}, time.Second)
	require.ErrorContains(t, err, "OOM")
	require.Equal(t, keystore.FaultUnavailable, s.Classify(err))
	require.NoError(t, c.ConfigSet(t.Context(), "maxmemory", "0").Err())
	require.NoError(t, c.ScriptFlush(t.Context()).Err())
	verdicts, err := s.Acquire(t.Context(), "one", []keystore.Claim{{ID: keystore.ID{Scope: "s", Key: "k"}}}, time.Second)
	require.NoError(t, err, "a server that forgot the scripts gets them again")
	require.Equal(t, keystore.Fresh, verdicts[0].Outcome)

	server.Stop()
	_, err = s.Acquire(t.Context(), "one", []keystore.Claim{{ID: keystore.ID{Scope: "s", Key: "k"}}}, time.Second)
	require.Error(t, err)
	require.Equal(t, keystore.FaultUnavailable, s.Classify(err))
	require.Error(t, s.Ping(t.Context()))
	down := open(t, redisstore.Config{URL: server.Address})
	require.Contains(t, join(down.Capabilities().Caveats), "did not answer")
}

// A password in a file may be changed without a restart of this process.
func TestPasswordIsReadForEachConnection(t *testing.T) {
	t.Parallel()
	server := testenv.PrivateRedis(t, "")
	file := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(file, []byte("first\n"), 0o600))
	admin := client(t, server.Address)
	setUser := func(password string) {
		require.NoError(t, admin.Do(t.Context(), "ACL", "SETUSER", "app", "reset", "on", ">"+password, "~*", "+@all").Err())
	}
	setUser("first")
	s := open(t, redisstore.Config{URL: server.Address, Username: "app", PasswordFile: file})
	require.NoError(t, s.Ping(t.Context()))
	setUser("second") // which ends the connections of the user
	require.NoError(t, os.WriteFile(file, []byte("second\n"), 0o600))
	testenv.Eventually(t, 30*time.Second, func() error { return s.Ping(t.Context()) })
}

func TestConfig(t *testing.T) {
	t.Parallel()
	for _, one := range []struct {
		name   string
		config redisstore.Config
		says   string
	}{
		{"nothing", redisstore.Config{}, "url is missing"},
		{"two ways", redisstore.Config{URL: "redis://h", Cluster: []string{"h:1"}}, "only one of"},
		{"F083 a bad url is not shown", redisstore.Config{URL: "redis://u:s3cr3t@ho st"}, "url cannot be understood"},
		{"tls without tls", redisstore.Config{URL: "redis://h", TLS: redisstore.TLS{CAFile: "x"}}, "rediss://"},
		{"node", redisstore.Config{Cluster: []string{"h"}}, "host:port"},
		{"two passwords", redisstore.Config{URL: "redis://h", Password: "a", PasswordFile: "b"}, "only one of password"},
		{"braces", redisstore.Config{URL: "redis://h", Prefix: "{x}"}, "no braces"},
		{"certificate", redisstore.Config{URL: "rediss://h", TLS: redisstore.TLS{CertFile: "x"}}, "belong together"},
	} {
		err := one.config.Validate()
		require.ErrorContains(t, err, one.says, one.name)
		require.NotContains(t, err.Error(), "s3cr3t", one.name)
	}
	require.NoError(t, redisstore.Config{URL: "rediss://u:p@h:6380/2"}.Validate())
	require.NoError(t, redisstore.Config{Cluster: []string{"a:1", "b:2"}, TLS: redisstore.TLS{Enabled: true}}.Validate())
}
