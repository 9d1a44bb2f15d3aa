package awsclock

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// service is a server whose clock differs from this machine's, by more and more.
type service struct {
	c     *Clock
	local time.Time
	ahead time.Duration
}

func newService() *service {
	c := New()
	return &service{c: c, local: c.origin, ahead: 1234567891 * time.Microsecond}
}

func (s *service) now() time.Time { return time.Unix(0, s.local.UnixNano()).Add(s.ahead) }

// pass lets time pass, by a clock that is some parts of a million slower or faster than the service's.
func (s *service) pass(d time.Duration, parts int64) {
	s.local = s.local.Add(d)
	s.ahead += d * time.Duration(parts) / 1_000_000
}

// ask sends a request that takes a while to and fro.
func (s *service) ask(to, fro time.Duration) {
	sent := s.local
	s.pass(to, 0)
	date := s.now().Truncate(time.Second)
	s.pass(fro, 0)
	s.c.observe(date, sent, s.local)
}

// The service's time is always within what the clock says, and answers narrow that.
func TestClockHoldsTheServicesTime(t *testing.T) {
	t.Parallel()
	s := newService()
	_, known := s.c.At(s.local)
	require.False(t, known)
	dice := rand.New(rand.NewPCG(1, 2))
	narrowest := time.Hour
	for range 20_000 {
		s.ask(time.Duration(dice.IntN(200))*time.Millisecond, time.Duration(dice.IntN(200))*time.Millisecond)
		for range 3 {
			now, known := s.c.At(s.local)
			earliest, latest := now.Earliest, now.Latest
			require.True(t, known)
			require.False(t, earliest.After(s.now()), "%s is after %s", earliest, s.now())
			require.False(t, latest.Before(s.now()), "%s is before %s", latest, s.now())
			narrowest = min(narrowest, latest.Sub(earliest))
			require.LessOrEqual(t, latest.Sub(earliest), tick+time.Second)
			s.pass(time.Duration(dice.IntN(1000))*time.Millisecond, dice.Int64N(1000)-500)
		}
	}
	require.Less(t, narrowest, 300*time.Millisecond)

	s.ahead += time.Hour // the machine was suspended, and its clock stood still
	now, _ := s.c.At(s.local)
	require.True(t, now.Latest.Before(s.now()))
	s.ask(0, time.Second)
	now, _ = s.c.At(s.local)
	require.False(t, now.Earliest.After(s.now()))
	require.False(t, now.Latest.Before(s.now()))
}

// Whatever two processes believe of the time, a lease is over for the one not before it is for the other.
func TestLeaseIsOverForItsHolderFirst(t *testing.T) {
	t.Parallel()
	const lease = 10 * time.Second
	dice := rand.New(rand.NewPCG(3, 4))
	for range 2000 {
		holder, rival := newService(), newService()
		holder.pass(time.Duration(dice.IntN(2000))*time.Millisecond, 0)
		rival.local = holder.local
		holder.ask(time.Duration(dice.IntN(300))*time.Millisecond, 0)
		asked := holder.local
		from, _ := holder.c.At(asked)
		until := Term{from, lease}.Until()

		// Another server of the service answers the rival, whose clock is before the other's.
		rival.local = asked.Add(lease - 400*time.Millisecond)
		rival.ahead += Skew * 9 / 10
		rival.ask(0, 0)
		now, _ := rival.c.At(rival.local)
		require.Positive(t, Left(until, now.Earliest))

		rival.pass(3500*time.Millisecond, 0)
		rival.ask(0, 0)
		now, _ = rival.c.At(rival.local)
		require.LessOrEqual(t, Left(until, now.Earliest), time.Duration(0), "and so much later it is over for all")
	}
}
