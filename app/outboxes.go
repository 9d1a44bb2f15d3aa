package app

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/oncemill/oncemill/middleware/outbox"
)

// placed is an outbox and where it is: in the database, or where the handlers of a plugin commit outgoing messages themselves. The name is
// inDatabase, or that of the first binding of those handlers.
type placed struct {
	where  string
	source outbox.Source
}

// outboxesOf are the outboxes of handlers besides the database's, each once. Bindings that are switched off count: they may have left messages.
func outboxesOf(all []declared) []placed {
	var found []placed
	for _, d := range all {
		if d.External == nil || d.External.Outbox == nil {
			continue
		}
		if !slices.ContainsFunc(found, func(p placed) bool { return p.source == d.External.Outbox }) {
			found = append(found, placed{d.Name, d.External.Outbox})
		}
	}
	return found
}

// outboxes are all outboxes of the application, that of the database first. The database has to be open.
func (a *App) outboxes() []placed {
	return append([]placed{{inDatabase, a.store.Outbox()}}, a.apart...)
}

// chosen are the outboxes that a command works on: the one of that name, or all.
func (a *App) chosen(where string) ([]placed, error) {
	all := a.outboxes()
	if where == "" {
		return all, nil
	}
	var names []string
	for _, p := range all {
		if p.where == where {
			return []placed{p}, nil
		}
		names = append(names, p.where)
	}
	return nil, withCode(ExitUsage, fmt.Errorf("--outbox %q: there are %s", where, strings.Join(names, ", ")))
}

// outgoing is a record and where it is.
type outgoing struct {
	outbox.Record
	where string
}

// listOutgoing lists the records of several outboxes, oldest first.
func listOutgoing(ctx context.Context, from []placed, aside bool, limit int) ([]outgoing, error) {
	var all []outgoing
	for _, p := range from {
		records, err := p.source.List(ctx, aside, limit)
		if err != nil {
			return nil, fmt.Errorf("outbox %s: %w", p.where, err)
		}
		for _, r := range records {
			all = append(all, outgoing{r, p.where})
		}
	}
	if len(from) > 1 {
		slices.SortStableFunc(all, func(a, b outgoing) int { return a.CreatedAt.Compare(b.CreatedAt) })
	}
	return all[:min(limit, len(all))], nil
}

// outgoingOf are the records that the handling of a key has left and that are not published yet: in the database, and where the scope's binding
// commits them itself.
func (a *App) outgoingOf(ctx context.Context, scope, key string) ([]outgoing, error) {
	from := []placed{{inDatabase, a.store.Outbox()}}
	for _, b := range a.bindings {
		for _, p := range a.apart {
			if b.engine.Scope == scope && b.outbox == p.source {
				from = append(from, p)
			}
		}
	}
	all, err := listOutgoing(ctx, from, false, storyRecords)
	return slices.DeleteFunc(all, func(o outgoing) bool { return o.Scope != scope || o.ParentKey != key }), err
}

// storyRecords is among how many records of each outbox those of a key are looked for.
const storyRecords = 10_000

// sum adds the states of several outboxes.
func sum(states []outbox.Status) (total outbox.Status) {
	for _, s := range states {
		total.Pending += s.Pending
		total.Delayed += s.Delayed
		total.Aside += s.Aside
		total.OldestAge = max(total.OldestAge, s.OldestAge)
	}
	return total
}
