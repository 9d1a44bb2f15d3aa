package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/user"
	"slices"

	"github.com/spf13/cobra"

	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/parking"
)

func (c *cli) keysCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "keys", Short: "Look at idempotency keys, decide those in doubt"}
	cmd.AddCommand(c.keysList(), c.keysShow(), c.keysResolve(), c.keysResend(), c.keysForget(), c.keysScopes(), c.keysClean(), c.keysEpoch())
	return cmd
}

func (c *cli) jsonFlag(cmd *cobra.Command) { cmd.Flags().BoolVar(&c.json, "json", false, "print JSON") }

// actor is who acts, for the record.
func actor(by string) string {
	if by != "" {
		return by
	}
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return "unknown"
}

func whoFlags(cmd *cobra.Command, by, why *string) {
	cmd.Flags().StringVar(by, "by", "", "who acts (defaults to the user of this process)")
	cmd.Flags().StringVar(why, "why", "", "the reason, kept with the record")
}

func (c *cli) keysList() *cobra.Command {
	var f keystore.Filter
	var state, twin string
	cmd := &cobra.Command{
		Use: "list", Short: "List keys, the latest first", Args: cobra.NoArgs,
		Example: "  oncemill keys list --state in_doubt\n  oncemill keys list --scope oncemill/payments --prefix order-123\n  oncemill keys list --same-fingerprint order-123",
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.State = keystore.State(state)
			if !slices.Contains([]keystore.State{"", keystore.InProgress, keystore.Completed, keystore.Failed, keystore.InDoubt}, f.State) {
				return withCode(ExitUsage, fmt.Errorf("--state %q is none of in_progress, completed, failed, in_doubt", state))
			}
			if f.Limit < 1 {
				return withCode(ExitUsage, fmt.Errorf("--limit %d: must be 1 or more", f.Limit))
			}
			return c.withStore(cmd.Context(), func(ctx context.Context, a *App) error {
				records, err := a.listKeys(ctx, f, twin)
				if err != nil {
					return err
				}
				return list(c, views(records, viewKey), []string{"SCOPE", "KEY", "STATE", "PROCESSED", "EXPIRES", "OWNER"}, func(r keyView) []string {
					return []string{r.Scope, r.Key, r.State, clock(r.ProcessedAt), clock(r.ExpiresAt), orDash(r.Owner)}
				})
			})
		},
	}
	c.jsonFlag(cmd)
	cmd.Flags().StringVar(&f.Scope, "scope", "", "only this scope")
	cmd.Flags().StringVar(&state, "state", "", "in_progress, completed, failed or in_doubt")
	cmd.Flags().StringVar(&f.Prefix, "prefix", "", "only keys that begin so")
	cmd.Flags().StringVar(&f.Fingerprint, "fingerprint", "", "only keys of this payload fingerprint")
	cmd.Flags().StringVar(&twin, "same-fingerprint", "", "only keys of the same scope and payload fingerprint as this key, itself included: was one operation asked for under two keys?")
	cmd.Flags().IntVar(&f.Limit, "limit", 100, "at most so many, of each scope with --same-fingerprint")
	cmd.MarkFlagsMutuallyExclusive("fingerprint", "same-fingerprint")
	complete(cmd, "state", string(keystore.InProgress), string(keystore.Completed), string(keystore.Failed), string(keystore.InDoubt))
	return cmd
}

// listKeys lists keys; where twin is given, those that have its fingerprint in one of its scopes.
func (a *App) listKeys(ctx context.Context, f keystore.Filter, twin string) ([]keystore.Record, error) {
	if twin == "" {
		return a.store.Keys().List(ctx, f)
	}
	known, err := a.store.Keys().Lookup(ctx, twin)
	if err != nil {
		return nil, err
	}
	if f.Scope != "" {
		known = slices.DeleteFunc(known, func(r keystore.Record) bool { return r.Scope != f.Scope })
	}
	known = slices.DeleteFunc(known, func(r keystore.Record) bool { return r.State == keystore.Absent })
	if len(known) == 0 {
		return nil, withCode(ExitMissing, errors.New("no scope has this key: it was never seen, was rolled back, or its retention is over"))
	}
	known = slices.DeleteFunc(known, func(r keystore.Record) bool { return r.Fingerprint == "" })
	if len(known) == 0 {
		return nil, withCode(ExitMissing, errors.New("the key has no fingerprint: its binding takes none (fingerprint: off)"))
	}
	var all []keystore.Record
	for _, r := range known {
		f.Scope, f.Fingerprint = r.Scope, r.Fingerprint
		same, err := a.store.Keys().List(ctx, f)
		if err != nil {
			return nil, err
		}
		all = append(all, same...)
	}
	return all, nil
}

// keyStory is everything that is known of a key in one scope.
type keyStory struct {
	Record   keystore.Record
	Attempts keystore.Attempt
	Parked   []parking.Row
	Outgoing []outgoing
}

func (c *cli) keysShow() *cobra.Command {
	cmd := &cobra.Command{
		Use: "show KEY", Short: "Show everything about a key, in every scope", Args: cobra.ExactArgs(1),
		Example: "  oncemill keys show order-123-creation",
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.withStore(cmd.Context(), func(ctx context.Context, a *App) error {
				stories, err := a.stories(ctx, args[0])
				if err != nil {
					return err
				}
				if len(stories) == 0 {
					return withCode(ExitMissing, errors.New("no scope knows this key: it was never seen, was rolled back, or its retention is over"))
				}
				if c.json {
					return printJSON(c.out, views(stories, viewStory))
				}
				for _, s := range stories {
					c.printStory(s)
				}
				return nil
			})
		},
	}
	c.jsonFlag(cmd)
	return cmd
}

// stories gathers what is known of a key.
func (a *App) stories(ctx context.Context, key string) ([]keyStory, error) {
	records, err := a.store.Keys().Lookup(ctx, key)
	if err != nil {
		return nil, err
	}
	rows, err := a.store.Parking().List(ctx, parking.Filter{Key: key})
	if err != nil {
		return nil, err
	}
	for _, row := range rows {
		known := slices.ContainsFunc(records, func(r keystore.Record) bool { return r.Scope == row.Scope })
		if !known {
			records = append(records, keystore.Record{ID: keystore.ID{Scope: row.Scope, Key: key}})
		}
	}
	var stories []keyStory
	for _, r := range records {
		s := keyStory{Record: r}
		if s.Attempts, err = a.store.Keys().Attempt(ctx, r.ID); err != nil {
			return nil, err
		}
		for _, row := range rows {
			if row.Scope == r.Scope {
				s.Parked = append(s.Parked, row)
			}
		}
		if s.Outgoing, err = a.outgoingOf(ctx, r.Scope, key); err != nil {
			return nil, err
		}
		stories = append(stories, s)
	}
	return stories, nil
}

func (c *cli) printStory(s keyStory) {
	state := string(s.Record.State)
	if s.Record.State == keystore.Absent {
		state = "absent (not processed yet, or rolled back)"
	}
	fmt.Fprintf(c.out, "%s  %s\n", oneLine(s.Record.Scope), oneLine(s.Record.Key))
	fmt.Fprintf(c.out, "  state        %s\n", state)
	line := func(name, value string) {
		if value != "" && value != "-" {
			fmt.Fprintf(c.out, "  %-12s %s\n", name, oneLine(value))
		}
	}
	line("processed", clock(s.Record.ProcessedAt))
	line("kept until", clock(s.Record.ExpiresAt))
	line("owner", s.Record.Owner)
	line("fingerprint", s.Record.Fingerprint)
	line("result", string(s.Record.Result))
	if s.Attempts.Failures > 0 {
		line("failures", fmt.Sprint(s.Attempts.Failures))
		line("last error", s.Attempts.LastError)
		line("last try", clock(s.Attempts.LastAt))
	}
	if s.Attempts.Suspected > 0 {
		line("crashes", fmt.Sprintf("under way in %d processes that did not see its end", s.Attempts.Suspected))
	}
	for _, row := range s.Parked {
		line(string(row.State), fmt.Sprintf("id %d, reason %s, attempts %d, due %s", row.ID, row.Reason, row.Attempts, clock(row.DueAt)))
	}
	for _, o := range s.Outgoing {
		line("outgoing", fmt.Sprintf("id %d of outbox %s to %s, key %s, not published yet", o.ID, o.where, o.Topic, o.Key))
	}
}

func (c *cli) keysResolve() *cobra.Command {
	var scope, outcome, result, by, why string
	cmd := &cobra.Command{
		Use: "resolve KEY --scope SCOPE --as done|retry|failed", Short: "Decide a key whose outside effect is not known", Args: cobra.ExactArgs(1),
		Long: `Decide a key in doubt:
  done    the effect has happened: the key is completed with --result, the message does not run again
  retry   it has not happened: the message runs again
  failed  it must not happen: the message becomes a dead letter`,
		Example: "  oncemill keys resolve pay-1 --scope oncemill/email --as done --why 'the mail server log has it'",
		RunE: func(cmd *cobra.Command, args []string) error {
			states := map[string]keystore.State{"done": keystore.Completed, "retry": keystore.Absent, "failed": keystore.Failed}
			to, ok := states[outcome]
			if !ok {
				return withCode(ExitUsage, fmt.Errorf("--as %q is none of done, retry, failed", outcome))
			}
			var kept json.RawMessage
			switch {
			case result == "":
			case to != keystore.Completed:
				return withCode(ExitUsage, errors.New("--result is for --as done"))
			case !json.Valid([]byte(result)):
				return withCode(ExitUsage, errors.New("--result is not JSON"))
			default:
				kept = json.RawMessage(result)
			}
			return c.withStore(cmd.Context(), func(ctx context.Context, a *App) error {
				id := keystore.ID{Scope: scope, Key: args[0]}
				err := a.store.Keys().Resolve(ctx, id, to, kept, actor(by), why)
				if err != nil {
					return refusedOr(err)
				}
				fmt.Fprintf(c.out, "resolved as %s\n", outcome)
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&scope, "scope", "", "the key's scope")
	cmd.Flags().StringVar(&outcome, "as", "", "done, retry or failed")
	cmd.Flags().StringVar(&result, "result", "", "JSON result to keep with a key that is done")
	whoFlags(cmd, &by, &why)
	complete(cmd, "as", "done", "retry", "failed")
	mustHave(cmd, "scope", "as")
	return cmd
}

func (c *cli) keysResend() *cobra.Command {
	var scope, by, why string
	cmd := &cobra.Command{
		Use: "resend KEY --scope SCOPE", Short: "Publish a completed key's messages again", Args: cobra.ExactArgs(1),
		Long: `Publish again what the handling of a completed key published, such as its confirmation, under the same identities. The handler does not run. Consumers
that keep their keys as long as this binding does remove the copy; it is for those that never saw the first. The binding must have had
on_duplicate: resend when the key was completed: only then are its messages kept.`,
		Example: "  oncemill keys resend pay-1 --scope oncemill/payments --why 'the shop lost its confirmation'",
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.withStore(cmd.Context(), func(ctx context.Context, a *App) error {
				n, err := a.store.Keys().Resend(ctx, keystore.ID{Scope: scope, Key: args[0]}, actor(by), why)
				if err != nil {
					return refusedOr(err)
				}
				fmt.Fprintf(c.out, "messages that go out again: %d\n", n)
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&scope, "scope", "", "the key's scope")
	whoFlags(cmd, &by, &why)
	mustHave(cmd, "scope")
	return cmd
}

func (c *cli) keysForget() *cobra.Command {
	var scope, by, why string
	var force bool
	cmd := &cobra.Command{
		Use: "forget KEY --scope SCOPE --force", Short: "Remove a key, so that its message would run again", Args: cobra.ExactArgs(1),
		Long:    "Remove a completed or failed key. A message with this key that arrives later runs again: its effect happens twice. That is why --force is needed.",
		Example: "  oncemill keys forget pay-1 --scope oncemill/payments --force --why 'rolled back by hand'",
		RunE: func(cmd *cobra.Command, args []string) error {
			if !force {
				return withCode(ExitRefused, errors.New("a forgotten key lets its message run a second time; say --force if that is meant"))
			}
			return c.withStore(cmd.Context(), func(ctx context.Context, a *App) error {
				if err := a.store.Keys().Forget(ctx, keystore.ID{Scope: scope, Key: args[0]}, actor(by), why); err != nil {
					return refusedOr(err)
				}
				if err := a.awaitEpoch(ctx); err != nil {
					return err
				}
				fmt.Fprintln(c.out, "forgotten")
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&scope, "scope", "", "the key's scope")
	cmd.Flags().BoolVar(&force, "force", false, "yes, the message may run again")
	whoFlags(cmd, &by, &why)
	mustHave(cmd, "scope")
	return cmd
}

// mustHave makes flags required.
func mustHave(cmd *cobra.Command, flags ...string) {
	for _, flag := range flags {
		if err := cmd.MarkFlagRequired(flag); err != nil {
			panic(err) // the flag was defined beside this call
		}
	}
}

// refusedOr gives errors that people must understand their exit code.
func refusedOr(err error) error {
	var refusal *parking.Refusal
	switch {
	case errors.As(err, &refusal), errors.Is(err, keystore.ErrNotInDoubt):
		return withCode(ExitRefused, err)
	case errors.Is(err, keystore.ErrNotFound), errors.Is(err, parking.ErrNotFound):
		return withCode(ExitMissing, err)
	}
	return err
}
