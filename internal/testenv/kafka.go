package testenv

import (
	"net"
	"testing"
)

// KafkaBehindProxy starts a Kafka that this test has for itself, see [Private], with a proxy before it. Clients that begin at the
// proxy's address stay behind it, because the broker sends them there again; clients that begin at Server.Address are not disturbed.
func KafkaBehindProxy(t testing.TB) (*Server, *TCPProxy) {
	t.Helper()
	behind := FreeAddress(t)
	_, port, err := net.SplitHostPort(behind)
	if err != nil {
		t.Fatalf("testenv: %v", err)
	}
	proxy := Proxy(t, behind)
	return Private(t, "kafka", "ONCEMILL_TEST_KAFKA_PROXIED_PORT="+port, "ONCEMILL_TEST_KAFKA_PROXY="+proxy.Addr), proxy
}
