package testenv

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
)

// TCPProxy forwards TCP connections to a server until a test disturbs them.
type TCPProxy struct {
	// Addr is the host and port to dial instead of the server's.
	Addr string

	t     testing.TB
	proxy *toxiproxy.Proxy
}

// Proxy forwards TCP to upstream, a host and port, until the test ends.
// A Kafka client leaves it for the address that the broker advertises: see [ProxiedKafka].
func Proxy(t testing.TB, upstream string) *TCPProxy {
	t.Helper()
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	p := &TCPProxy{t: t, proxy: toxiproxy.NewProxy(server, t.Name(), "127.0.0.1:0", upstream)}
	if err := p.proxy.Start(); err != nil {
		t.Fatalf("testenv: start proxy: %v", err)
	}
	p.Addr = p.proxy.Listen
	t.Cleanup(func() {
		p.Resume()
		p.proxy.Stop()
	})
	return p
}

// Cut drops all connections and refuses new ones, until [TCPProxy.Restore].
func (p *TCPProxy) Cut() { p.proxy.Stop() }

// Restore accepts connections again, on the same address.
func (p *TCPProxy) Restore() {
	p.t.Helper()
	if err := p.proxy.Start(); err != nil {
		p.t.Fatalf("testenv: restore proxy: %v", err)
	}
}

// Pause holds back what flows in both directions, on open and on new
// connections, until [TCPProxy.Resume]; nothing is lost. To the client it
// looks like a network that swallows packets.
func (p *TCPProxy) Pause() {
	p.t.Helper()
	p.Latency(24 * time.Hour)
}

// Direction is one of the two ways in which bytes flow through a proxy.
type Direction string

// Directions.
const (
	ToServer   Direction = "upstream"
	FromServer Direction = "downstream"
)

// Directions returns both.
func Directions() []Direction { return []Direction{ToServer, FromServer} }

// Hold holds back what flows in one direction, until [TCPProxy.Resume]; [TCPProxy.Cut] loses it. The other direction flows on.
func (p *TCPProxy) Hold(d Direction) {
	p.t.Helper()
	p.Resume()
	p.delay(d, 24*time.Hour)
}

// Silence loses what flows in one direction, until [TCPProxy.Resume], which closes the connections: a stream with a hole is none.
// The other direction flows on.
func (p *TCPProxy) Silence(d Direction) {
	p.t.Helper()
	p.Resume()
	p.disturb(d, "timeout", `{"timeout": 0}`)
}

// CutAfter closes a connection, one that is open or a new one, when so many more bytes have passed in one direction: 0 is before the
// next one. It holds until [TCPProxy.Resume].
func (p *TCPProxy) CutAfter(d Direction, bytes int64) {
	p.t.Helper()
	p.Resume()
	p.disturb(d, "limit_data", fmt.Sprintf(`{"bytes": %d}`, bytes))
}

// Latency delays what flows in each direction by d, until [TCPProxy.Resume].
func (p *TCPProxy) Latency(d time.Duration) {
	p.t.Helper()
	p.Resume()
	for _, way := range Directions() {
		p.delay(way, d)
	}
}

func (p *TCPProxy) delay(way Direction, d time.Duration) {
	p.t.Helper()
	p.disturb(way, "latency", fmt.Sprintf(`{"latency": %d}`, d.Milliseconds()))
}

// disturb does something to a direction, under its name.
func (p *TCPProxy) disturb(way Direction, kind, attributes string) {
	p.t.Helper()
	toxic := fmt.Sprintf(`{"name": %q, "type": %q, "stream": %q, "attributes": %s}`, way, kind, way, attributes)
	if _, err := p.proxy.Toxics.AddToxicJson(strings.NewReader(toxic)); err != nil {
		p.t.Fatalf("testenv: disturb proxy: %v", err)
	}
}

// Resume ends a disturbance, and lets through what was held back.
func (p *TCPProxy) Resume() {
	p.t.Helper()
	for _, way := range Directions() {
		if p.proxy.Toxics.GetToxic(string(way)) == nil {
			continue
		}
		if err := p.proxy.Toxics.RemoveToxic(context.Background(), string(way)); err != nil {
			p.t.Fatalf("testenv: resume proxy: %v", err)
		}
	}
}

// ProxiedKafka starts a Kafka of the test's own that is reached through the proxy alone, whose address it advertises.
func ProxiedKafka(t testing.TB) *TCPProxy {
	t.Helper()
	address := FreeAddress(t)
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatalf("testenv: %v", err)
	}
	p := Proxy(t, address)
	Private(t, "kafka", "ONCEMILL_TEST_KAFKA_PORT="+port, "ONCEMILL_TEST_KAFKA_ADVERTISED="+p.Addr)
	return p
}
