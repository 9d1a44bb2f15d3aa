package dynamostore

import (
	"net/http"
	"sync"
	"time"
)

const (
	// tick is what the service's Date header leaves out: it has whole seconds.
	tick = time.Second
	// skew is how far the clocks of the service's own servers may be apart. A lease is over that much later for everybody but its holder.
	skew = time.Second
	// drift is how fast this process's clock may run apart from the service's: one part in so many.
	drift = 1000
)

// clock knows the service's time as an interval, from the Date of its answers and a clock of this process that nobody sets. Each answer
// narrows it, time widens it. An answer that does not fit begins it anew: this machine was suspended. Safe for concurrent use.
type clock struct {
	origin time.Time

	mu    sync.Mutex
	known bool
	at    time.Duration // when lo and hi were true, after origin
	lo    time.Duration // the service's time at least, less the time after origin
	hi    time.Duration // and at most
}

func newClock() *clock { return &clock{origin: time.Now()} }

// elapsed is the time after origin, by the monotonic clock.
func (c *clock) elapsed(t time.Time) time.Duration { return t.Sub(c.origin) }

// observe learns from an answer with that Date, to a request of which the first byte left after sent and that was read at received.
func (c *clock) observe(date, sent, received time.Time) {
	unix := time.Duration(date.UnixNano())
	s, r := c.elapsed(sent), c.elapsed(received)
	lo, hi := unix-r, unix+tick-s
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known {
		wider := (r - c.at).Abs() / drift
		if max(lo, c.lo-wider) <= min(hi, c.hi+wider) {
			lo, hi = max(lo, c.lo-wider), min(hi, c.hi+wider)
		}
	}
	c.known, c.at, c.lo, c.hi = true, r, lo, hi
}

// between returns the earliest and the latest that the service's time may have been at a moment of this process; false before the first answer.
func (c *clock) between(t time.Time) (earliest, latest time.Time, known bool) {
	e := c.elapsed(t)
	c.mu.Lock()
	defer c.mu.Unlock()
	wider := (e - c.at).Abs() / drift
	return time.Unix(0, int64(e+c.lo-wider)), time.Unix(0, int64(e+c.hi+wider)), c.known
}

// doer is the part of an HTTP client that the SDK needs.
type doer struct {
	client *http.Client
	clock  *clock
}

// Do sends a request and learns from its answer, whatever it says.
func (d doer) Do(r *http.Request) (*http.Response, error) {
	sent := time.Now()
	answer, err := d.client.Do(r)
	if err != nil {
		return answer, err
	}
	if date, err := http.ParseTime(answer.Header.Get("Date")); err == nil {
		d.clock.observe(date, sent, time.Now())
	}
	return answer, nil
}
