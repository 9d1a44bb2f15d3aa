package handlertest

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncemill/oncemill/middleware/faultpoint"
	"github.com/oncemill/oncemill/middleware/parking"
)

// errInjected is the failure of a step that a test breaks.
var errInjected = errors.New("handlertest: this step was made to fail")

// FailEverywhere delivers a message again and again, each time to a copy of the database as it is now, and each time with a
// failure at another step of its way: before and after the claim, before and after each statement, before the commit, with the
// commit's answer lost, before the ack. After each failure the message is delivered again until it is settled, and
// once more as a duplicate, which must change nothing; then check looks at the copy. Each step is a subtest that is named after
// it; the first one has no failure.
func (k *Kit) FailEverywhere(to, key string, payload any, check func(k *Kit)) {
	k.t.Helper()
	steps := k.steps(to, key, payload, check)
	for i, step := range steps {
		k.t.Run(fmt.Sprintf("%02d-%s", i+1, step), func(t *testing.T) {
			c := k.copy(t)
			fired := false
			n := 0
			c.one.breakAt(func(_ context.Context, at faultpoint.Point) error {
				if timed(at) {
					return nil
				}
				if n++; n == i+1 {
					fired = true
					return errInjected
				}
				return nil
			})
			outcome := c.deliver(c.one, to, c.message(key, payload), false)
			if !fired {
				t.Fatalf("step %d was not reached: does the handler do the same each time?", i+1)
			}
			c.one.breakAt(nil)
			c.settle(to, key, payload, outcome)
			before := c.snapshot()
			c.Deliver(to, key, payload)
			c.unchanged(before, "another delivery")
			check(c)
		})
	}
}

// timed reports steps that come by the clock, and so at another place each time.
func timed(at faultpoint.Point) bool { return at == faultpoint.BeforeRenewal }

// steps delivers the message to a copy, and returns the steps of its way. check looks at this copy too.
func (k *Kit) steps(to, key string, payload any, check func(k *Kit)) []faultpoint.Point {
	k.t.Helper()
	var steps []faultpoint.Point
	k.t.Run("00-undisturbed", func(t *testing.T) {
		c := k.copy(t)
		c.one.breakAt(func(_ context.Context, at faultpoint.Point) error {
			if !timed(at) {
				steps = append(steps, at)
			}
			return nil
		})
		c.Deliver(to, key, payload)
		c.one.breakAt(nil)
		check(c)
	})
	return steps
}

// copy is a kit for t on a copy of the database.
func (k *Kit) copy(t *testing.T) *Kit {
	t.Helper()
	c := *k
	c.t, c.path, c.ahead = t, filepath.Join(t.TempDir(), "test.db"), &atomic.Int64{}
	c.ahead.Store(k.ahead.Load())
	if _, err := k.DB().ExecContext(t.Context(), `VACUUM INTO ?`, c.path); err != nil {
		t.Fatalf("handlertest: copying the database: %v", err)
	}
	c.open()
	return &c
}

// settle delivers a message that went back to its broker again, and lets time pass until it is parked no more.
func (k *Kit) settle(to, key string, payload any, outcome Outcome) {
	k.t.Helper()
	const rounds = 20
	for range rounds {
		switch {
		case outcome == HandedBack:
			outcome = k.deliver(k.two, to, k.message(key, payload), true)
		case len(k.parked(parking.Waiting)) > 0:
			k.Advance(time.Hour)
		default:
			return
		}
	}
	k.t.Errorf("the message was not settled after %d more attempts%s", rounds, k.reasons())
}
