package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/oncemill/oncemill/config"
	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/parking"
)

func (c *cli) dlqCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "dlq", Short: "Look at dead letters and waiting messages, send them back, drop them"}
	cmd.AddCommand(c.dlqList(), c.dlqShow(), c.dlqRedrive(), c.dlqDrop())
	return cmd
}

// selection is the flags that choose dead letters.
type selection struct {
	filter  parking.Filter
	handler string
	limit   int
}

func (s *selection) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&s.handler, "handler", "", "only this binding")
	cmd.Flags().StringVar(&s.filter.Reason, "reason", "", "only this reason, such as payload-mismatch")
	cmd.Flags().StringVar(&s.filter.Key, "key", "", "only this idempotency key")
	cmd.Flags().Var((*span)(&s.filter.Since), "since", "only what changed in this time, such as 24h or 7d")
	cmd.Flags().IntVar(&s.limit, "limit", 100, "at most so many")
}

// span is a flag for a duration as the configuration writes it: with days.
type span time.Duration

func (s *span) String() string { return "" }
func (s *span) Type() string   { return "duration" }

func (s *span) Set(text string) error {
	d, err := config.ParseDuration(text)
	if err != nil || d <= 0 {
		return fmt.Errorf("%q is no time such as 24h or 7d", text)
	}
	*s = span(d)
	return nil
}

// check refuses what selects nothing by mistake.
func (s *selection) check() error {
	if s.limit < 1 {
		return withCode(ExitUsage, fmt.Errorf("--limit %d: must be 1 or more", s.limit))
	}
	return nil
}

// empty reports that nothing narrows the selection.
func (s *selection) empty() bool {
	return s.handler == "" && s.filter.Reason == "" && s.filter.Key == "" && s.filter.Since == 0
}

// rows reads the selected rows, page by page.
func (s *selection) rows(ctx context.Context, a *App, states ...parking.State) ([]parking.Row, error) {
	f := s.filter
	f.States = states
	if s.handler == "" {
		return s.pages(ctx, a, f)
	}
	scopes, err := a.parkedScopes(ctx, s.handler)
	if err != nil {
		return nil, err
	}
	var all []parking.Row
	for _, f.Scope = range scopes {
		rows, err := s.pages(ctx, a, f)
		if err != nil {
			return nil, err
		}
		all = append(all, rows...)
	}
	slices.SortStableFunc(all, func(a, b parking.Row) int { return cmp.Compare(a.ID, b.ID) })
	return all[:min(len(all), s.limit)], nil
}

// pages reads the rows of one filter, up to the limit.
func (s *selection) pages(ctx context.Context, a *App, f parking.Filter) ([]parking.Row, error) {
	f.Limit = min(s.limit, 500)
	var all []parking.Row
	for len(all) < s.limit {
		page, err := a.store.Parking().List(ctx, f)
		if err != nil {
			return nil, err
		}
		all = append(all, page...)
		if len(page) < f.Limit {
			break
		}
		f.AfterID = page[len(page)-1].ID
	}
	return all[:min(len(all), s.limit)], nil
}

// parkedScopes are the scopes in which rows of a binding can be: its own, and those of its shards where its keys are in the broker.
func (a *App) parkedScopes(ctx context.Context, handler string) ([]string, error) {
	scope, err := a.scope(handler)
	if err != nil {
		return nil, err
	}
	counts, err := a.store.Parking().Counts(ctx)
	if err != nil {
		return nil, err
	}
	scopes := []string{scope}
	for _, n := range counts {
		if n.Scope != scope && baseScope(n.Scope) == scope && !slices.Contains(scopes, n.Scope) {
			scopes = append(scopes, n.Scope)
		}
	}
	return scopes, nil
}

// scope returns the scope of a binding's name; a full scope is taken as it is, so that those of removed bindings can be named too.
func (a *App) scope(handler string) (string, error) {
	for _, b := range a.bindings {
		if b.name == handler || b.engine.Scope == handler {
			return b.engine.Scope, nil
		}
	}
	if strings.Contains(handler, "/") {
		return handler, nil
	}
	return "", withCode(ExitUsage, fmt.Errorf("--handler %q is no binding of this configuration; name a full scope (service/binding) for one that was removed", handler))
}

func (c *cli) dlqList() *cobra.Command {
	var s selection
	var all bool
	cmd := &cobra.Command{
		Use: "list", Short: "List dead letters, oldest first", Args: cobra.NoArgs,
		Example: "  oncemill dlq list --handler payments --since 24h\n  oncemill dlq list --all",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := s.check(); err != nil {
				return err
			}
			return c.withStore(cmd.Context(), func(ctx context.Context, a *App) error {
				states := []parking.State{parking.Dead}
				if all {
					states = nil
				}
				rows, err := s.rows(ctx, a, states...)
				if err != nil {
					return err
				}
				return list(c, viewRows(rows), []string{"ID", "STATE", "SCOPE", "KEY", "REASON", "ATTEMPTS", "FIRST", "DUE"}, func(r rowView) []string {
					return []string{strconv.FormatInt(r.ID, 10), r.State, r.Scope, r.Key, r.Reason, strconv.Itoa(r.Attempts), clock(r.FirstAt), clock(r.DueAt)}
				})
			})
		},
	}
	s.flags(cmd)
	c.jsonFlag(cmd)
	cmd.Flags().BoolVar(&all, "all", false, "also messages that wait for a retry and those in doubt")
	return cmd
}

func (c *cli) dlqShow() *cobra.Command {
	var payload bool
	cmd := &cobra.Command{
		Use: "show ID", Short: "Show one parked message", Args: cobra.ExactArgs(1),
		Example: "  oncemill dlq show 17 --payload\n  oncemill dlq show 17 --json",
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := parseID(args[0])
			if err != nil {
				return err
			}
			return c.withStore(cmd.Context(), func(ctx context.Context, a *App) error {
				row, err := a.store.Parking().Get(ctx, id)
				if err != nil {
					return refusedOr(err)
				}
				if c.json {
					return printJSON(c.out, viewRow(row))
				}
				c.printRow(row, payload)
				return nil
			})
		},
	}
	c.jsonFlag(cmd)
	cmd.Flags().BoolVar(&payload, "payload", false, "print the payload too, control characters escaped (--json has the exact bytes)")
	return cmd
}

func (c *cli) printRow(r parking.Row, payload bool) {
	for _, line := range [][2]string{
		{"id", strconv.FormatInt(r.ID, 10)}, {"state", string(r.State)}, {"scope", r.Scope}, {"topic", r.Topic},
		{"key", r.Key}, {"uuid", r.UUID}, {"ordering key", r.OrderingKey}, {"reason", r.Reason}, {"class", r.Class},
		{"error", r.Error}, {"attempts", strconv.Itoa(r.Attempts)}, {"first", clock(r.FirstAt)}, {"last", clock(r.LastAt)}, {"due", clock(r.DueAt)},
		{"payload", fmt.Sprintf("%d bytes", len(r.Payload))},
	} {
		if line[1] != "" && line[1] != "-" {
			fmt.Fprintf(c.out, "%-13s %s\n", line[0], oneLine(line[1]))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.Metadata)) {
		fmt.Fprintf(c.out, "header        %s: %s\n", oneLine(name), oneLine(r.Metadata[name]))
	}
	for _, act := range r.History {
		fmt.Fprintf(c.out, "history       %s %s by %s: %s\n", clock(act.At), act.What, oneLine(act.By), oneLine(act.Why))
	}
	if payload {
		fmt.Fprintf(c.out, "\n%s\n", harmless(string(r.Payload)))
	}
}

func parseID(text string) (int64, error) {
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, withCode(ExitUsage, fmt.Errorf("%q is no id: take one from \"dlq list\"", text))
	}
	return id, nil
}

func (c *cli) dlqRedrive() *cobra.Command {
	var s selection
	var rate float64
	var dry bool
	var asKey, by, why string
	cmd := &cobra.Command{
		Use: "redrive [ID...]", Short: "Send dead letters back to the binding that failed",
		Long: `Send dead letters back: those of the ids, or those that the flags select. Each runs again in the binding that failed, and nowhere else.
It is safe to interrupt: what was sent back stays so, the rest stays dead. A message whose effect is completed is refused.`,
		Example: "  oncemill dlq redrive 17\n  oncemill dlq redrive --handler payments --reason attempts-exhausted --limit 300 --rate 10 --dry-run\n  oncemill dlq redrive 18 --as-key order-124",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkRedrive(args, asKey, rate); err != nil {
				return withCode(ExitUsage, err)
			}
			return c.eachDead(cmd.Context(), &s, args, dry, rate, "sent back", func(ctx context.Context, a *App, id int64) error {
				return a.store.Parking().Redrive(ctx, id, asKey, parking.Action{What: "redrive", By: actor(by), Why: why})
			})
		},
	}
	s.flags(cmd)
	whoFlags(cmd, &by, &why)
	cmd.Flags().Float64Var(&rate, "rate", 0, "at most so many in a second (0: no bound)")
	cmd.Flags().BoolVar(&dry, "dry-run", false, "only say what would be done")
	cmd.Flags().StringVar(&asKey, "as-key", "", "run under this key instead (for one message with a payload mismatch)")
	return cmd
}

func (c *cli) dlqDrop() *cobra.Command {
	var s selection
	var dry bool
	var by, why string
	cmd := &cobra.Command{
		Use: "drop [ID...]", Short: "Delete dead letters for good",
		Example: "  oncemill dlq drop 17 --why 'test message'\n  oncemill dlq drop --reason payload-not-json --since 24h --dry-run",
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.eachDead(cmd.Context(), &s, args, dry, 0, "dropped", func(ctx context.Context, a *App, id int64) error {
				return a.store.Parking().Drop(ctx, id, parking.Action{What: "drop", By: actor(by), Why: why})
			})
		},
	}
	s.flags(cmd)
	whoFlags(cmd, &by, &why)
	cmd.Flags().BoolVar(&dry, "dry-run", false, "only say what would be done")
	return cmd
}

// checkRedrive checks the flags that belong to redrive alone.
func checkRedrive(ids []string, asKey string, rate float64) error {
	switch {
	case rate < 0:
		return errors.New("--rate: must not be negative")
	case asKey == "":
		return nil
	case len(ids) != 1:
		return errors.New("--as-key gives one message another key: name exactly one id")
	}
	return envelope.ValidateKey(asKey)
}

// eachDead does act to the dead letters that ids or the selection name, and reports how many; refusals are told and counted.
func (c *cli) eachDead(ctx context.Context, s *selection, args []string, dry bool, rate float64, done string, act func(context.Context, *App, int64) error) error {
	if len(args) == 0 && s.empty() {
		return withCode(ExitRefused, errors.New("name ids, or select with --handler, --reason, --key or --since; try --dry-run first"))
	}
	if err := s.check(); err != nil {
		return err
	}
	return c.withStore(ctx, func(ctx context.Context, a *App) error {
		ids, err := c.deadIDs(ctx, a, s, args)
		if err != nil {
			return err
		}
		if dry {
			fmt.Fprintf(c.out, "%d dead letters would be %s\n", len(ids), done)
			return nil
		}
		n, refused := 0, 0
		defer func() { fmt.Fprintf(c.out, "%d %s, %d refused\n", n, done, refused) }()
		for i, id := range ids {
			if i > 0 && rate > 0 {
				sleep(ctx, time.Duration(float64(time.Second)/rate))
			}
			err := ctx.Err()
			if err == nil {
				// What has begun is ended: an interruption must not leave it open whether this one was done.
				err = finishing(ctx, func(ctx context.Context) error { return act(ctx, a, id) })
			}
			var refusal *parking.Refusal
			switch {
			case err == nil:
				n++
			case ctx.Err() != nil:
				return fmt.Errorf("interrupted with %d left: run it again to go on", len(ids)-i)
			case errors.As(err, &refusal):
				refused++
				fmt.Fprintf(c.errs, "%d: refused: %s\n", id, oneLine(refusal.Error()))
			default:
				return refusedOr(fmt.Errorf("dead letter %d: %w", id, err))
			}
		}
		if refused > 0 && n == 0 {
			return withCode(ExitRefused, errors.New("nothing was done"))
		}
		return nil
	})
}

// finishing calls f with a context that an interruption does not end, but time does.
func finishing(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commandPatience)
	defer cancel()
	return f(ctx)
}

// deadIDs returns the ids that args name, which must be dead letters, or those of the selection.
func (c *cli) deadIDs(ctx context.Context, a *App, s *selection, args []string) ([]int64, error) {
	var ids []int64
	for _, arg := range args {
		id, err := parseID(arg)
		if err != nil {
			return nil, err
		}
		row, err := a.store.Parking().Get(ctx, id)
		if err == nil && row.State != parking.Dead {
			err = withCode(ExitRefused, fmt.Errorf("it is no dead letter but %s", row.State))
		}
		if err != nil {
			return nil, refusedOr(fmt.Errorf("parked message %d: %w", id, err))
		}
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	if len(args) > 0 {
		return ids, nil
	}
	rows, err := s.rows(ctx, a, parking.Dead)
	for _, row := range rows {
		ids = append(ids, row.ID)
	}
	return ids, err
}

// sleep waits for d; false when ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
