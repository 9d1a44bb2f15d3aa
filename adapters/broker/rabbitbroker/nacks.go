package rabbitbroker

import (
	"sync"
	"time"
)

const (
	nackFirst   = 100 * time.Millisecond
	nackMax     = 5 * time.Second
	nackCrowded = time.Second
	nackMemory  = 4096
)

// nacks remembers how often each message was nacked here, and so how long the next nack is held.
type nacks struct {
	inFlight int

	mu    sync.Mutex
	times map[string]int // by UUID
	held  int
}

func newNacks(inFlight int) *nacks { return &nacks{inFlight: inFlight, times: map[string]int{}} }

// hold counts a nack and returns how long to hold it. Where nacked messages take more than half of the places in flight the time is
// shorter, so that others wait no longer than that. The caller must call release.
func (n *nacks) hold(uuid string) (delay time.Duration, release func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.times) >= nackMemory {
		clear(n.times)
	}
	times := n.times[uuid]
	n.times[uuid] = times + 1
	n.held++
	delay = min(nackFirst<<min(times, 10), nackMax)
	if 2*n.held > n.inFlight {
		delay = min(delay, nackCrowded)
	}
	return jitter(delay), n.release
}

func (n *nacks) release() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.held--
}

// forget is called when the message was acked.
func (n *nacks) forget(uuid string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.times, uuid)
}
