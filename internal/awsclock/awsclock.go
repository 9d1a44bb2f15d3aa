// Package awsclock tells the time of one of Amazon's services, for leases that are kept in it.
//
// A condition of DynamoDB cannot ask for the time, and the clock of a worker may be set wrong. So a process takes the time from the Date of the service's
// answers, as an interval. Where that leaves a doubt it goes to a lease's holder: a lease ends by the latest time that it may have been when it was
// asked for, and is over for others, Skew later still, by the earliest time that it may be.
package awsclock

import (
	"errors"
	"net/http"
	"sync"
	"time"
)

const (
	// tick is what the service's Date header leaves out: it has whole seconds.
	tick = time.Second
	// Skew is how far the clocks of the service's own servers may be apart. A lease is over that much later for everybody but its holder.
	Skew = time.Second
	// drift is how fast this process's clock may run apart from the service's: one part in so many.
	drift = 1000
)

// ErrNoDate is what an operation that needs the time fails with where no answer has had one.
var ErrNoDate = errors.New("the service's answers have no Date, which leases need: let the endpoint pass it on")

// Clock knows the service's time as an interval, from the Date of its answers and a clock of this process that nobody sets. Each answer
// narrows it, time widens it. An answer that does not fit begins it anew: this machine was suspended. Safe for concurrent use.
type Clock struct {
	origin time.Time

	mu    sync.Mutex
	known bool
	at    time.Duration // when lo and hi were true, after origin
	lo    time.Duration // the service's time at least, less the time after origin
	hi    time.Duration // and at most
}

// New returns a clock that knows nothing yet.
func New() *Clock { return &Clock{origin: time.Now()} }

// elapsed is the time after origin, by the monotonic clock.
func (c *Clock) elapsed(t time.Time) time.Duration { return t.Sub(c.origin) }

// observe learns from an answer with that Date, to a request of which the first byte left after sent and that was read at received.
func (c *Clock) observe(date, sent, received time.Time) {
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

// Instant is a moment of this process in the service's time.
type Instant struct {
	Local            time.Time
	Earliest, Latest time.Time
}

// At is a moment of this process in the service's time; false before the first answer that had a Date.
func (c *Clock) At(t time.Time) (Instant, bool) {
	e := c.elapsed(t)
	c.mu.Lock()
	defer c.mu.Unlock()
	wider := (e - c.at).Abs() / drift
	return Instant{t, time.Unix(0, int64(e+c.lo-wider)), time.Unix(0, int64(e+c.hi+wider))}, c.known
}

// Client sends requests by an HTTP client and learns from their answers. It is what the SDK's options take.
type Client struct {
	HTTP  *http.Client
	Clock *Clock
}

// Do sends a request and learns from its answer, whatever it says.
func (c Client) Do(r *http.Request) (*http.Response, error) {
	sent := time.Now()
	answer, err := c.HTTP.Do(r)
	if err != nil {
		return answer, err
	}
	if date, err := http.ParseTime(answer.Header.Get("Date")); err == nil {
		c.Clock.observe(date, sent, time.Now())
	}
	return answer, nil
}
