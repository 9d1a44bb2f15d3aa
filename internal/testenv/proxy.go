package testenv

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/Shopify/toxiproxy/v2/toxics"
	"github.com/rs/zerolog"
)

// TCPProxy forwards TCP connections to a server until a test disturbs them. One fault is in force at a time: a new one ends the one before.
type TCPProxy struct {
	// Addr is the host and port to dial instead of the server's.
	Addr string

	t     testing.TB
	proxy *toxiproxy.Proxy
	gates map[Direction]*gate
}

// Direction is one of the two in which the bytes of a connection flow.
type Direction string

// Directions.
const (
	// ToServer is what clients send.
	ToServer Direction = "upstream"
	// ToClient is what the server sends.
	ToClient Direction = "downstream"
)

// Directions are both.
var Directions = []Direction{ToServer, ToClient}

// Proxy forwards TCP to upstream, a host and port, until the test ends. A Kafka client leaves it for the address
// that the broker advertises, unless that is the proxy's: see [KafkaBehindProxy].
func Proxy(t testing.TB, upstream string) *TCPProxy {
	t.Helper()
	toxics.Register(gateType, new(gate))
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	p := &TCPProxy{t: t, proxy: toxiproxy.NewProxy(server, t.Name(), "127.0.0.1:0", upstream), gates: map[Direction]*gate{}}
	for _, d := range Directions {
		added, err := p.proxy.Toxics.AddToxicJson(strings.NewReader(fmt.Sprintf(`{"type": %q, "stream": %q}`, gateType, d)))
		if err != nil {
			t.Fatalf("testenv: make proxy: %v", err)
		}
		p.gates[d] = added.Toxic.(*gate)
		p.gates[d].set(fault{})
	}
	if err := p.proxy.Start(); err != nil {
		t.Fatalf("testenv: start proxy: %v", err)
	}
	p.Addr = p.proxy.Listen
	t.Cleanup(func() {
		p.Cut()
		p.Resume()
	})
	return p
}

// Cut drops all connections with what is held back on them, and refuses new ones, until [TCPProxy.Restore].
func (p *TCPProxy) Cut() {
	p.proxy.Stop()
	for _, g := range p.gates {
		g.lose()
	}
}

// Restore accepts connections again, on the same address.
func (p *TCPProxy) Restore() {
	p.t.Helper()
	if err := p.proxy.Start(); err != nil {
		p.t.Fatalf("testenv: restore proxy: %v", err)
	}
}

// CutAfter cuts each connection, in both directions, once n bytes of direction d have passed on it, until [TCPProxy.Resume]: on an open
// connection n bytes from now on, on a new one its first n. With 0 nothing of d passes: the first byte cuts.
func (p *TCPProxy) CutAfter(d Direction, n int) {
	p.fault(fault{cut: true, after: n}, d)
}

// Hold holds back what flows in direction d, on open and on new connections, until [TCPProxy.Resume]; [TCPProxy.Cut] loses it. The other
// direction flows. To both sides it looks like a network that swallows packets.
func (p *TCPProxy) Hold(d Direction) {
	p.fault(fault{hold: true}, d)
}

// Pause is [TCPProxy.Hold] in both directions.
func (p *TCPProxy) Pause() {
	p.fault(fault{hold: true}, Directions...)
}

// Delay makes what flows in direction d arrive later by that much, until [TCPProxy.Resume].
func (p *TCPProxy) Delay(d Direction, by time.Duration) {
	p.fault(fault{delay: by}, d)
}

// Resume ends a fault, and lets through what was held back.
func (p *TCPProxy) Resume() { p.fault(fault{}) }

// Met says how often something has met the fault that is in force: a connection that was cut, or a piece of what flows that was held back or delayed.
func (p *TCPProxy) Met() int {
	met := 0
	for _, g := range p.gates {
		met += g.count()
	}
	return met
}

// fault puts f in force for the directions, and ends what is in force for others.
func (p *TCPProxy) fault(f fault, directions ...Direction) {
	for d, g := range p.gates {
		if len(directions) == 1 && directions[0] != d || len(directions) == 0 {
			g.set(fault{})
		} else {
			g.set(f)
		}
	}
}
