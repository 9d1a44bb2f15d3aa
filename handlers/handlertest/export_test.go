package handlertest

import (
	"github.com/oncemill/oncemill/adapters/store"
	"github.com/oncemill/oncemill/middleware/outbox"
)

// What tests of the kit put in place of the real engine and the real outbox.
type (
	Engine = engine
	Parts  = parts
)

func WithEngine(make func(Parts) Engine) Option { return func(k *Kit) { k.engine = make } }

func WithOutbox(make func(store.Store) outbox.Source) Option { return func(k *Kit) { k.outbox = make } }

// Kinds are all kinds of faults.
func Kinds() []Kind { return kinds }

// Shortest tries as Prove does, with faults of these kinds, and returns what is wrong after the first schedule that fails, with that schedule; "" is that all
// hold. tried is how many there were.
func (k *Kit) Shortest(kinds []Kind, invariant func(k *Kit), messages ...Message) (said string, tried int) {
	k.t.Helper()
	p, t := k.newProof(kinds, invariant, messages)
	if said := p.undisturbed(t); said != "" {
		return "without a fault: " + said, 1
	}
	p.each(func(_ string, s schedule) bool {
		said = p.try(t, s)
		return said == ""
	})
	return said, p.tried
}
