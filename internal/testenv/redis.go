package testenv

import "testing"

// Redis returns the URL of the shared server, or skips the test. Tests share its keys: each takes a prefix of its own, made by [Name].
func Redis(t testing.TB) string {
	t.Helper()
	return lookup(t, "redis")[0]
}

// PrivateRedis starts a server that this test has for itself, see [Private]. options are settings of redis-server, such as
// "--appendonly no", which also hold after a restart.
func PrivateRedis(t testing.TB, options string) *Server {
	t.Helper()
	return Private(t, "redis", "ONCEMILL_TEST_REDIS_OPTIONS="+options)
}
