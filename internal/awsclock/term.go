package awsclock

import "time"

// givenBack is the lease below which one is over at once: who asks for so little gives it back, and the clock could not tell it apart.
const givenBack = 100 * time.Millisecond

// Term is a lease from a moment on. It ends when it does by the latest that the service's time may have been.
type Term struct {
	From  Instant
	Lease time.Duration
}

// Until is the end of the lease as it is kept: milliseconds since 1970, 0 for one that is given back.
func (t Term) Until() int64 {
	if t.Lease < givenBack {
		return 0
	}
	return t.From.Latest.Add(t.Lease).UnixMilli()
}

// Short reports that the lease ends too early: the answer showed a later time than was believed, because this machine was suspended, or it
// came late, to a request that was sent again.
func (t Term) Short(c *Clock) bool {
	if t.Lease < givenBack {
		return false
	}
	then, _ := c.At(t.From.Local)
	return then.Earliest.After(t.From.Latest.Add(Skew/2)) || time.Since(t.From.Local) > t.Lease/4
}

// Left is how long nobody but its holder has a lease that ends at until; zero or less once it is over for sure.
func Left(until int64, earliest time.Time) time.Duration {
	if until == 0 {
		return 0
	}
	return time.UnixMilli(until).Add(Skew).Sub(earliest)
}
