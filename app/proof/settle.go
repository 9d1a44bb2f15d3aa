package proof

import (
	"cmp"
	"context"
	"fmt"
	"time"
)

// settle waits until nothing is on its way: every published message has its effect, and for a while no replica has anything to report. It
// reports false where that did not come within patience; the verdict then says what is missing. An error is the end of ctx.
func (t *Trial) settle(ctx context.Context, patience time.Duration) (bool, error) {
	bounded, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		missing, err := t.missing(bounded)
		if err == nil && missing == "" && t.rec.silence() > 1500*time.Millisecond {
			return true, nil
		}
		if pause(bounded, 100*time.Millisecond); bounded.Err() == nil {
			continue
		}
		if err != nil {
			missing = "the database cannot be read: " + err.Error()
		}
		t.cfg.Say("  not settled: %s", cmp.Or(missing, "the replicas still work"))
		return false, ctx.Err()
	}
}

// missing says what has to come yet; nothing where everything is there.
func (t *Trial) missing(ctx context.Context) (string, error) {
	type count struct {
		Scope string `db:"scope"`
		State string `db:"state"`
		N     int    `db:"n"`
	}
	var keys, parked []count
	if err := t.cfg.DB.SelectContext(ctx, &keys, `SELECT scope, status AS state, count(*) AS n FROM processed_events GROUP BY scope, status`); err != nil {
		return "", err
	}
	if err := t.cfg.DB.SelectContext(ctx, &parked, `SELECT scope, state, count(*) AS n FROM parked GROUP BY scope, state`); err != nil {
		return "", err
	}
	var outbox int
	if err := t.cfg.DB.GetContext(ctx, &outbox, `SELECT count(*) FROM outbox`); err != nil {
		return "", err
	}
	done, dead := map[string]int{}, map[string]int{}
	for _, c := range keys {
		switch c.State {
		case "in_progress":
			return fmt.Sprintf("%d keys of %s are in progress", c.N, c.Scope), nil
		case "completed", "in_doubt", "failed":
			done[c.Scope] += c.N
		}
	}
	for _, c := range parked {
		switch c.State {
		case "waiting":
			return fmt.Sprintf("%d messages of %s wait", c.N, c.Scope), nil
		case "dead":
			dead[c.Scope] += c.N
		}
	}
	if outbox > 0 {
		return fmt.Sprintf("%d messages are in the outbox", outbox), nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, b := range t.cfg.Plan.Bindings {
		want := len(t.posted[b.Topic])
		if done[b.Scope] < want {
			return fmt.Sprintf("%d of %d keys of %s are done", done[b.Scope], want, b.Scope), nil
		}
		if refused := len(t.forged[b.Topic]); dead[b.Scope] < refused {
			return fmt.Sprintf("%d of %d second payloads of %s are refused", dead[b.Scope], refused, b.Scope), nil
		}
	}
	return "", nil
}
