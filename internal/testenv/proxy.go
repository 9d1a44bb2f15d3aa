package testenv

import (
	"context"
	"fmt"
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
// A Kafka client leaves it for the address that the broker advertises.
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

// HoldAnswers holds back what the server sends, until [TCPProxy.Resume]; [TCPProxy.Cut] loses it. What clients send arrives.
func (p *TCPProxy) HoldAnswers() {
	p.t.Helper()
	p.Resume()
	p.delay(streams[1], 24*time.Hour)
}

// Latency delays what flows in each direction by d, until [TCPProxy.Resume].
func (p *TCPProxy) Latency(d time.Duration) {
	p.t.Helper()
	p.Resume()
	for _, stream := range streams {
		p.delay(stream, d)
	}
}

func (p *TCPProxy) delay(stream string, d time.Duration) {
	p.t.Helper()
	toxic := fmt.Sprintf(`{"name": %q, "type": "latency", "stream": %q, "attributes": {"latency": %d}}`,
		stream, stream, d.Milliseconds())
	if _, err := p.proxy.Toxics.AddToxicJson(strings.NewReader(toxic)); err != nil {
		p.t.Fatalf("testenv: delay proxy: %v", err)
	}
}

// Resume ends a pause or a delay, and lets through what was held back.
func (p *TCPProxy) Resume() {
	p.t.Helper()
	for _, stream := range streams {
		if p.proxy.Toxics.GetToxic(stream) == nil {
			continue
		}
		if err := p.proxy.Toxics.RemoveToxic(context.Background(), stream); err != nil {
			p.t.Fatalf("testenv: resume proxy: %v", err)
		}
	}
}

var streams = []string{"upstream", "downstream"}
