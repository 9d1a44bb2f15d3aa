package app

import (
	"slices"

	"github.com/oncemill/oncemill/config"
)

// resend says what a binding promises that sends its messages again for a duplicate, and refuses it where a consumer of the same
// configuration would take the copy for a new message. all are the application's bindings with their promises.
func (p *Promise) resend(b binding, all []binding, promises []Promise) {
	if !b.engine.Resend {
		return
	}
	kept := config.Duration(p.kept)
	p.because("a duplicate within %s publishes the first run's messages again, under their same identities", kept)
	p.unless("a consumer of its messages that removes no duplicates, or forgets their keys within %s, sees a message that is sent again as a new one", kept)
	for i, c := range all {
		if !slices.Contains(b.plugin.Publishes, c.topic) {
			continue
		}
		switch {
		case c.keySpec == "position":
			p.refuse("on_duplicate: resend publishes to %s, where binding %s takes each delivery's position for its key and would handle every copy: give it another key", c.topic, c.name)
		case promises[i].kept < p.kept:
			p.refuse("on_duplicate: resend publishes to %s again for %s, but binding %s keeps its keys for %s and would handle a later copy: set bindings.%s.retention to at least %s, or bindings.%s.retention to less",
				c.topic, kept, c.name, promises[i].Retention, c.name, kept, b.name)
		}
	}
}
