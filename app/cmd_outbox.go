package app

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/oncemill/oncemill/middleware/outbox"
)

func (c *cli) outboxCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "outbox", Short: "Look at outgoing messages, retry those set aside"}
	cmd.AddCommand(c.outboxStatus(), c.outboxList(),
		c.outboxAside("retry", "Try set-aside records again: those of the ids, or all", true, outbox.Source.Retry),
		c.outboxAside("drop", "Delete set-aside records for good", false, outbox.Source.Drop))
	return cmd
}

func (c *cli) outboxStatus() *cobra.Command {
	cmd := &cobra.Command{
		Use: "status", Short: "Count pending, delayed and set-aside records", Args: cobra.NoArgs,
		Example: "  oncemill outbox status --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.withStore(cmd.Context(), func(ctx context.Context, a *App) error {
				s, err := a.store.Outbox().Status(ctx)
				if err != nil {
					return err
				}
				if c.json {
					return printJSON(c.out, statusView{s.Pending, s.Delayed, s.Aside, s.OldestAge.Seconds()})
				}
				_, err = fmt.Fprintf(c.out, "pending    %d (oldest %s)\ndelayed    %d\nset aside  %d\n", s.Pending, s.OldestAge.Round(time.Millisecond), s.Delayed, s.Aside)
				return err
			})
		},
	}
	c.jsonFlag(cmd)
	return cmd
}

func (c *cli) outboxList() *cobra.Command {
	var aside bool
	var limit int
	cmd := &cobra.Command{
		Use: "list", Short: "List records, oldest first", Args: cobra.NoArgs,
		Example: "  oncemill outbox list --aside",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.withStore(cmd.Context(), func(ctx context.Context, a *App) error {
				if limit < 1 {
					return withCode(ExitUsage, fmt.Errorf("--limit %d: must be 1 or more", limit))
				}
				records, err := a.store.Outbox().List(ctx, aside, limit)
				if err != nil {
					return err
				}
				return list(c, views(records, viewRecord), []string{"ID", "TOPIC", "KEY", "CREATED", "ATTEMPTS", "ASIDE", "REASON"}, func(r recordView) []string {
					return []string{strconv.FormatInt(r.ID, 10), r.Topic, r.Key, clock(r.CreatedAt), strconv.Itoa(r.Attempts), strconv.FormatBool(r.Aside), orDash(r.Reason)}
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
func (c *cli) outboxAside(name, short string, all bool, act func(outbox.Source, context.Context, []int64) (int, error)) *cobra.Command {
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
			return c.withStore(cmd.Context(), func(ctx context.Context, a *App) error {
				n, err := act(a.store.Outbox(), ctx, ids)
				if err != nil {
					return err
				}
				fmt.Fprintf(c.out, "%s: %d records\n", name, n)
				return nil
			})
		},
	}
}
