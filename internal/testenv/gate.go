package testenv

import (
	"sync"
	"time"

	"github.com/Shopify/toxiproxy/v2/stream"
	"github.com/Shopify/toxiproxy/v2/toxics"
)

// gateType is the gate's name among toxiproxy's toxics.
const gateType = "gate"

// gate is what one direction of all connections of a proxy passes. It stays for as long as the proxy: toxiproxy waits for ever when it puts a toxic
// into a connection that is just breaking, and 5 s for each piece that is left in a toxic that it takes out of a broken one.
type gate struct {
	mu      sync.Mutex
	state   gateState
	changed chan struct{} // closed with the next change
}

var _ toxics.BufferedToxic = (*gate)(nil)

// gateState is what a connection sees of its gate.
type gateState struct {
	fault fault
	turn  int // of the fault
	lost  int // how often all connections were lost
	met   int
}

// fault is what happens to what flows through a gate; the zero value lets it flow.
type fault struct {
	hold  bool
	delay time.Duration
	cut   bool
	after int // bytes that pass before the cut
}

// set puts a fault in force.
func (g *gate) set(f fault) {
	g.change(func(s *gateState) { s.fault, s.met, s.turn = f, 0, s.turn+1 })
}

// lose ends all connections that are open, and drops what is held back.
func (g *gate) lose() {
	g.change(func(s *gateState) { s.lost++ })
}

func (g *gate) change(f func(*gateState)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f(&g.state)
	if g.changed != nil {
		close(g.changed)
	}
	g.changed = make(chan struct{})
}

func (g *gate) now() (gateState, <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.state, g.changed
}

// meet counts that something met the fault of that turn.
func (g *gate) meet(turn int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.state.turn == turn {
		g.state.met++
	}
}

func (g *gate) count() int {
	s, _ := g.now()
	return s.met
}

// GetBufferSize is how many pieces may wait in a gate.
func (g *gate) GetBufferSize() int { return 1024 }

// Pipe is one connection's way through the gate.
func (g *gate) Pipe(stub *toxics.ToxicStub) {
	c := crossing{gate: g, stub: stub}
	begin, _ := g.now()
	c.lost = begin.lost
	for piece := range stub.Input {
		if !c.pass(piece) {
			break
		}
	}
	stub.Close()
	// Its reader would wait for ever with a piece that nobody takes.
	for range stub.Input { //nolint:revive // drains
	}
}

// crossing is a connection on its way through a gate.
type crossing struct {
	gate *gate
	stub *toxics.ToxicStub
	lost int
	// The bytes that passed in the present turn.
	passed, turn int
}

// pass lets a piece through when the gate does, and reports whether the connection goes on.
func (c *crossing) pass(piece *stream.StreamChunk) bool {
	for met := 0; ; {
		s, changed := c.gate.now()
		if s.lost != c.lost {
			return false
		}
		left := s.fault.delay - time.Since(piece.Timestamp)
		if !s.fault.hold && left <= 0 {
			return c.send(piece, s)
		}
		if met != s.turn {
			met = s.turn
			c.gate.meet(met)
		}
		var due <-chan time.Time
		if !s.fault.hold {
			due = time.After(left)
		}
		select {
		case <-due:
		case <-changed:
		}
	}
}

// send hands on what may pass of a piece.
func (c *crossing) send(piece *stream.StreamChunk, s gateState) (goesOn bool) {
	if s.turn != c.turn {
		c.turn, c.passed = s.turn, 0
	}
	data := piece.Data
	goesOn = !s.fault.cut || c.passed+len(data) < s.fault.after
	if !goesOn {
		data = data[:s.fault.after-c.passed]
		c.gate.meet(s.turn)
	}
	c.passed += len(data)
	if len(data) == 0 {
		return goesOn
	}
	for {
		now, changed := c.gate.now()
		if now.lost != c.lost {
			return false
		}
		select {
		case c.stub.Output <- &stream.StreamChunk{Data: data, Timestamp: piece.Timestamp}:
			return goesOn
		case <-changed:
		}
	}
}
