package app

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/oncemill/oncemill/middleware/outbox"
)

func (c *cli) outboxCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "outbox", Short: "Look at outgoing messages, retry those set aside",
		Long: `Look at outgoing messages, retry those set aside.

Outgoing messages are in the database, and those of plugins whose effect lies elsewhere are there, each in an outbox that is named after the plugin.`,
	}
	var where string
	cmd.PersistentFlags().StringVar(&where, "outbox", "", "only this outbox, such as database; all unless set")
	cmd.AddCommand(c.outboxStatus(&where), c.outboxList(&where),
		c.outboxAside(&where, "retry", "Try set-aside records again: those of the ids, or all", true, outbox.Source.Retry),
		c.outboxAside(&where, "drop", "Delete set-aside records for good", false, outbox.Source.Drop))
	return cmd
}

// withOutboxes runs f on the outboxes that the command line names.
func (c *cli) withOutboxes(ctx context.Context, where *string, f func(context.Context, []placed) error) error {
	return c.withStore(ctx, func(ctx context.Context, a *App) error {
		chosen, err := a.chosen(*where)
		if err != nil {
			return err
		}
		return f(ctx, chosen)
	})
}

func (c *cli) outboxStatus(where *string) *cobra.Command {
	cmd := &cobra.Command{
		Use: "status", Short: "Count pending, delayed and set-aside records", Args: cobra.NoArgs,
		Example: "  oncemill outbox status --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.withOutboxes(cmd.Context(), where, c.printStatus)
		},
	}
	c.jsonFlag(cmd)
	return cmd
}

func (c *cli) printStatus(ctx context.Context, from []placed) error {
	var states []outbox.Status
	view := statusView{}
	for _, p := range from {
		s, err := p.source.Status(ctx)
		if err != nil {
			return fmt.Errorf("outbox %s: %w", p.where, err)
		}
		states = append(states, s)
		view.Outboxes = append(view.Outboxes, viewState(p.where, s))
	}
	if c.json {
		view.stateView = viewState("", sum(states))
		return printJSON(c.out, view)
	}
	for i, s := range states {
		if len(states) > 1 {
			fmt.Fprintf(c.out, "outbox     %s\n", from[i].where)
		}
		fmt.Fprintf(c.out, "pending    %d (oldest %s)\ndelayed    %d\nset aside  %d\n", s.Pending, s.OldestAge.Round(time.Millisecond), s.Delayed, s.Aside)
	}
	return nil
}

func (c *cli) outboxList(where *string) *cobra.Command {
	var aside bool
	var limit int
	cmd := &cobra.Command{
		Use: "list", Short: "List records, oldest first", Args: cobra.NoArgs,
		Example: "  oncemill outbox list --aside",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.withOutboxes(cmd.Context(), where, func(ctx context.Context, from []placed) error {
				if limit < 1 {
					return withCode(ExitUsage, fmt.Errorf("--limit %d: must be 1 or more", limit))
				}
				records, err := listOutgoing(ctx, from, aside, limit)
				if err != nil {
					return err
				}
				return list(c, views(records, viewRecord), []string{"OUTBOX", "ID", "TOPIC", "KEY", "CREATED", "ATTEMPTS", "ASIDE", "REASON"}, func(r recordView) []string {
					return []string{r.Outbox, strconv.FormatInt(r.ID, 10), r.Topic, r.Key, clock(r.CreatedAt), strconv.Itoa(r.Attempts), strconv.FormatBool(r.Aside), orDash(r.Reason)}
				})
			})
		},
	}
	c.jsonFlag(cmd)
	cmd.Flags().BoolVar(&aside, "aside", false, "only records that are set aside")
	cmd.Flags().IntVar(&limit, "limit", 100, "at most so many")
	return cmd
}

// outboxAside is a command on set-aside records; without ids it works on all where that is harmless.
func (c *cli) outboxAside(where *string, name, short string, all bool, act func(outbox.Source, context.Context, []int64) (int, error)) *cobra.Command {
	args := cobra.ArbitraryArgs
	if !all {
		args = cobra.MinimumNArgs(1)
	}
	return &cobra.Command{
		Use: name + " [ID...]", Short: short, Args: args,
		Example: "  oncemill outbox " + name + " 17 18",
		RunE: func(cmd *cobra.Command, args []string) error {
			var ids []int64
			for _, arg := range args {
				id, err := parseID(arg)
				if err != nil {
					return err
				}
				ids = append(ids, id)
			}
			return c.withOutboxes(cmd.Context(), where, func(ctx context.Context, from []placed) error {
				if len(from) > 1 && len(ids) > 0 {
					return withCode(ExitUsage, errors.New("ids are those of one outbox: name it with --outbox, as \"outbox list\" shows it"))
				}
				total := 0
				for _, p := range from {
					n, err := act(p.source, ctx, ids)
					if err != nil {
						return fmt.Errorf("outbox %s: %w", p.where, err)
					}
					total += n
				}
				fmt.Fprintf(c.out, "%s: %d records\n", name, total)
				return nil
			})
		},
	}
}
