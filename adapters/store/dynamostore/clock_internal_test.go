package dynamostore

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/keystore"
)

// service is a server whose clock differs from this machine's, by more and more.
type service struct {
	c     *clock
	local time.Time
	ahead time.Duration
}

func newService() *service {
	c := newClock()
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
	_, _, known := s.c.between(s.local)
	require.False(t, known)
	dice := rand.New(rand.NewPCG(1, 2))
	narrowest := time.Hour
	for range 20_000 {
		s.ask(time.Duration(dice.IntN(200))*time.Millisecond, time.Duration(dice.IntN(200))*time.Millisecond)
		for range 3 {
			earliest, latest, known := s.c.between(s.local)
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
	_, latest, _ := s.c.between(s.local)
	require.True(t, latest.Before(s.now()))
	s.ask(0, time.Second)
	earliest, latest, _ := s.c.between(s.local)
	require.False(t, earliest.After(s.now()))
	require.False(t, latest.Before(s.now()))
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
		earliest, latest, _ := holder.c.between(asked)
		until := term{instant{asked, earliest, latest}, lease}.until()

		// Another server of the service answers the rival, whose clock is before the other's.
		rival.local = asked.Add(lease - 400*time.Millisecond)
		rival.ahead += skew * 9 / 10
		rival.ask(0, 0)
		earliest, latest, _ = rival.c.between(rival.local)
		require.Positive(t, view{values{"lease_until": until}, earliest, latest}.left())

		rival.pass(3500*time.Millisecond, 0)
		rival.ask(0, 0)
		earliest, latest, _ = rival.c.between(rival.local)
		require.LessOrEqual(t, view{values{"lease_until": until}, earliest, latest}.left(), time.Duration(0), "and so much later it is over for all")
	}
}

// Scope and key never run into each other.
func TestNames(t *testing.T) {
	t.Parallel()
	one, two := name(keystore.ID{Scope: "a", Key: "b:c"}), name(keystore.ID{Scope: "a:b", Key: "c"})
	require.NotEqual(t, one, two)
}
