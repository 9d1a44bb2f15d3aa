package handlertest

import (
	"fmt"
	"strings"
	"testing"
)

// Message is one that a proof delivers. To is the binding's topic or name, and Payload as Kit.Deliver takes them.
type Message struct {
	To, Key string
	Payload any
}

// Prove breaks the handlers at every step of their messages' way: before and after the claim and each statement, before the commit, with its answer
// lost, around an outside call and its lease, before the ack, and in the relay before and after each record is published and
// marked. At each step it tries an error, a panic, a deadline that passes, a connection that is cut, a process that is killed (a real
// one: the test runs itself again), a rival that gets the same message at that moment, and a replica that takes over when
// a lease is over. Each time the messages are delivered in their order on a copy of the database as it is now, then
// again until all is quiet, and once more.
//
// After each, invariant looks at the database: what it wants to see is the effect of each message, once. Prove itself checks
// that the last delivery changed nothing, and that keys, dead letters and outgoing messages, by topic and counted by identity, are
// what they are without a fault. Where an outcome is unknown and the handler's policy leaves the message in doubt for a person, invariant is not asked.
//
// Each fault is a subtest, by whose name it is repeated. Handlers have to do the same each time; a
// killed process leaves nothing but the database and files, so what an invariant asks has to be there. The process that is killed
// runs the test up to this call, with other databases; a test calls Prove at one place once.
func (k *Kit) Prove(invariant func(k *Kit), messages ...Message) {
	k.t.Helper()
	k.prove(kinds, invariant, messages)
}

// FailEverywhere is Prove of one message and with errors alone, for handlers that keep something in this process.
func (k *Kit) FailEverywhere(to, key string, payload any, check func(k *Kit)) {
	k.t.Helper()
	k.prove([]Kind{Failure}, check, []Message{{to, key, payload}})
}

func (k *Kit) prove(kinds []Kind, invariant func(k *Kit), messages []Message) {
	k.t.Helper()
	p, t := k.newProof(kinds, invariant, messages)
	var shortest string
	t.Run("00-undisturbed", func(t *testing.T) {
		if said := p.undisturbed(t); said != "" {
			shortest = "no fault at all"
			t.Error(said)
		}
	})
	if shortest != "" {
		return
	}
	p.each(func(name string, s schedule) bool {
		t.Run(name, func(t *testing.T) {
			if said := p.try(t, s); said != "" {
				if shortest == "" {
					shortest = t.Name()
				}
				t.Error(said)
			}
		})
		return true
	})
	if shortest != "" {
		t.Errorf("handlertest: %d schedules were tried; the shortest that fails is repeated by\n  go test -run '%s'", p.tried, pattern(shortest))
	}
	p.report(t)
}

// newProof returns a proof and its test. In a process that was started to be killed it does not return.
func (k *Kit) newProof(kinds []Kind, invariant func(k *Kit), messages []Message) (*proof, *testing.T) {
	k.t.Helper()
	p := &proof{kit: k, kinds: kinds, invariant: invariant, messages: messages}
	k.childOf(p)
	t, ok := k.t.(*testing.T)
	if !ok {
		k.t.Fatalf("handlertest: a proof within a proof")
	}
	return p, t
}

// report says how many schedules were tried.
func (p *proof) report(t *testing.T) {
	t.Helper()
	t.Logf("handlertest: %d schedules were tried, in %d of them a message ended in doubt, as its policy says", p.tried, p.doubted)
}

// pattern is the -run argument that selects a test by its name.
func pattern(name string) string {
	parts := strings.Split(name, "/")
	for i, part := range parts {
		parts[i] = "^" + part + "$"
	}
	return strings.Join(parts, "/")
}

// proof is one call of Prove or Explore.
type proof struct {
	kit       *Kit
	kinds     []Kind
	invariant func(k *Kit)
	messages  []Message

	plain   schedule // without faults
	steps   map[int][]step
	want    ending
	tried   int
	doubted int
}

// undisturbed runs the messages without faults, notes their steps and what they leave, and returns what is wrong already.
func (p *proof) undisturbed(t testing.TB) string {
	for i := range p.messages {
		p.plain = append(p.plain, action{Do: deliver, Message: i})
	}
	p.plain = append(p.plain, action{Do: publish})
	return try(t, func(r *recorder) {
		tr := p.kit.begin(r, p.messages, p.plain)
		tr.run(p.plain)
		p.want, p.steps = tr.finish(), tr.steps
		p.invariant(tr.k)
	})
}

// each calls f with every schedule of one fault, the simplest kinds first, until f returns false.
func (p *proof) each(f func(name string, s schedule) bool) {
	number := 0
	for i := range p.plain {
		for n, at := range p.steps[i] {
			number++
			for _, kind := range p.kinds {
				if !at.can(kind) {
					continue
				}
				s := append(schedule(nil), p.plain...)
				s[i].Fault = &fault{Step: n + 1, Kind: kind}
				if !f(at.name(number, kind), s) {
					return
				}
			}
		}
	}
}

// try runs a schedule and returns what is wrong afterwards, with the schedule; "" is nothing.
func (p *proof) try(t testing.TB, s schedule) string {
	p.tried++
	var tr *trial
	said := try(t, func(r *recorder) {
		tr = p.kit.begin(r, p.messages, s)
		tr.run(s)
		got := tr.finish()
		if tr.doubted && tr.k.mayDoubt() {
			p.doubted++
			return
		}
		tr.compare(got, p.want)
		p.invariant(tr.k)
	})
	if said == "" {
		return ""
	}
	return fmt.Sprintf("%s\nthe schedule:\n%s", said, s.text(p.messages, tr.reached))
}
