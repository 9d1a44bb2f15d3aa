package proof

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/oncemill/oncemill/app/proof/history"
	"github.com/oncemill/oncemill/middleware/faultpoint"
)

// Schedule is how the random part goes.
type Schedule struct {
	For  time.Duration
	Rate float64 // messages in a second, on average
	// Disturb are commands that are run at random moments.
	Disturb []string
	// Environ is theirs.
	Environ []string
}

// Random publishes at random and breaks at random until the time is over; the seed decides.
func (t *Trial) Random(ctx context.Context, s Schedule) error {
	rnd := rand.New(rand.NewPCG(t.cfg.Plan.Seed, 2))
	lose := rand.New(rand.NewPCG(t.cfg.Plan.Seed, 3))
	t.mail.lose(func() bool { return lose.IntN(50) == 0 })
	defer t.mail.lose(nil)

	ending, cancel := context.WithTimeout(ctx, s.For)
	defer cancel()
	var group errgroup.Group
	for n := range 3 {
		own := rand.New(rand.NewPCG(t.cfg.Plan.Seed, uint64(10+n)))
		group.Go(func() error { return t.produce(ctx, ending, own, n, s.Rate/3) })
	}
	group.Go(func() error { return t.breakAtRandom(ending, rnd) })
	if len(s.Disturb) > 0 {
		own := rand.New(rand.NewPCG(t.cfg.Plan.Seed, 4))
		group.Go(func() error { return t.disturb(ctx, ending, own, s) })
	}
	group.Go(func() error { return t.tellProgress(ending, s.For) })
	err := group.Wait()
	var left []int
	for _, a := range t.outstanding() {
		left = append(left, a.ID)
	}
	t.disarm(left...)
	return err
}

// produce sends messages of all bindings, some of them more than once, in bursts; ending ends it between two messages.
func (t *Trial) produce(ctx, ending context.Context, rnd *rand.Rand, producer int, rate float64) error {
	names := t.cfg.Cast.cues()
	mean := time.Duration(float64(time.Second) / max(rate, 0.1))
	var earlier []cue
	for n := 0; ending.Err() == nil; {
		burst := 1
		if rnd.IntN(10) == 0 {
			burst = 5 + rnd.IntN(20)
		}
		for range burst {
			n++
			copies := 0
			if rnd.IntN(3) == 0 {
				copies = 1 + rnd.IntN(2)
			}
			c := t.cue(names[rnd.IntN(len(names))], (producer+1)*1_000_000+n)
			if err := t.perform(ctx, c, copies); err != nil {
				return err
			}
			if earlier = append(earlier, c); rnd.IntN(40) == 0 {
				if err := t.forgeOne(ctx, earlier[rnd.IntN(len(earlier))]); err != nil {
					return err
				}
			}
		}
		pause(ending, time.Duration(rnd.ExpFloat64()*float64(mean)*float64(burst)))
	}
	return nil
}

// forgeOne publishes another payload under a key, where the key is certainly used.
func (t *Trial) forgeOne(ctx context.Context, c cue) error {
	if c.target != c.key { // what the producer has sent is under this key
		return nil
	}
	for _, b := range t.cfg.Plan.Bindings {
		if b.Topic != c.topic {
			continue
		}
		var done int
		err := t.cfg.DB.GetContext(ctx, &done, t.cfg.DB.Rebind(`SELECT count(*) FROM processed_events WHERE scope = ? AND idempotency_key = ? AND status = 'completed'`), b.Scope, c.key)
		if err != nil || done == 0 {
			return nil // the database is away, or the message is on its way: another time
		}
		return t.forge(ctx, b.Name, c)
	}
	return nil
}

// breakAtRandom arms faults, kills, stops and cuts. A fault that does not fire makes room for another one after some time.
func (t *Trial) breakAtRandom(ending context.Context, rnd *rand.Rand) error {
	targets := t.targets()
	const most = 16 // armed at once
	var armed []int
	for ending.Err() == nil {
		r := t.replicas[rnd.IntN(len(t.replicas))]
		switch dice := rnd.IntN(100); {
		case dice < 3:
			r.kill()
		case dice < 5:
			r.stop()
		case dice < 9 && len(t.cfg.Lines) > 0:
			t.cut(r, rnd)
		case dice < 70:
			one := targets[rnd.IntN(len(targets))]
			one.Nth, one.Kind = 1+rnd.IntN(4), Faults()[rnd.IntN(len(Faults()))]
			switch {
			case one.Scope == "" && one.Kind == FaultRival:
				one.Kind = FaultError
			case one.Point == faultpoint.Answering && (one.Kind == FaultError || one.Kind == FaultCut):
				one.Kind = FaultPanic
			case one.Point == faultpoint.BeforeClaim && rnd.IntN(3) == 0: // some messages fail until they are parked
				one.Kind, one.Times = FaultError, 2+rnd.IntN(8)
			}
			armed = append(armed, t.arm(one)...)
			if len(armed) > most {
				t.disarm(armed[0])
				armed = armed[1:]
			}
		}
		pause(ending, time.Duration(rnd.ExpFloat64()*float64(250*time.Millisecond)))
	}
	return nil
}

// targets are the steps that messages come by, those of the relay as often as those of a few bindings.
func (t *Trial) targets() (targets []Arm) {
	for _, b := range t.cfg.Plan.Bindings {
		for _, at := range faultpoint.Engine() {
			if unreachable(b, at, t.steps[b.Name]) == "" {
				targets = append(targets, Arm{Point: at, Scope: b.Scope})
			}
		}
	}
	if t.source == "" {
		return targets
	}
	for _, at := range faultpoint.Relay() {
		for range max(1, len(t.cfg.Plan.Bindings)/2) {
			targets = append(targets, Arm{Point: at})
		}
	}
	return targets
}

// cut cuts one of a replica's lines for a moment.
func (t *Trial) cut(r *replica, rnd *rand.Rand) {
	c := Cut{Line: t.cfg.Lines[rnd.IntN(len(t.cfg.Lines))], For: time.Duration(rnd.IntN(3000)) * time.Millisecond}
	t.rec.Add(history.Event{At: time.Now(), Kind: history.Disturbed, Replica: r.name, What: "cut " + c.Line, Reason: c.For.String()})
	r.order(Order{Cut: &c})
}

// disturb runs the commands at random moments, one at a time.
func (t *Trial) disturb(ctx, ending context.Context, rnd *rand.Rand, s Schedule) error {
	for {
		pause(ending, time.Duration((0.3+rnd.ExpFloat64())*float64(20*time.Second)))
		if ending.Err() != nil {
			return nil
		}
		command := s.Disturb[rnd.IntN(len(s.Disturb))]
		t.rec.Add(history.Event{At: time.Now(), Kind: history.Disturbed, What: "command", Reason: command})
		t.cfg.Say("  disturbing: %s", command)
		cmd := exec.CommandContext(ctx, "sh", "-c", command)
		cmd.Env = s.Environ
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("the command %q failed: %w\n%s", command, err, out)
		}
	}
}

// tellProgress says from time to time how far it is.
func (t *Trial) tellProgress(ending context.Context, total time.Duration) error {
	started := time.Now()
	for {
		pause(ending, max(total/20, 2*time.Second))
		t.cfg.Say("  %6s  sent %d  delivered %d  completed %d  duplicates %d  faults %d  killed %d  fell %d  cut %d",
			time.Since(started).Round(time.Second), t.rec.Count("confirmed"), t.rec.Count("delivered"), t.rec.Count("engine completed"),
			t.rec.Count("engine duplicate"), t.rec.Count("fault"), t.rec.Count("process killed"), t.rec.Count("process fell"),
			t.rec.Count("disturbed"))
		if ending.Err() != nil {
			return nil
		}
	}
}
