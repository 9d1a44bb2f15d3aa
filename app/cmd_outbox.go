package app

import (
	"context"
	"fmt"
	"strconv"

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
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.withApp(cmd.Context(), (*App).openStore, func(ctx context.Context, a *App) error {
				s, err := a.store.Outbox().Status(ctx)
				if err != nil {
					return err
				}
				if c.json {
					return printJSON(c.out, s)
				}
				_, err = fmt.Fprintf(c.out, "pending    %d (oldest %s)\ndelayed    %d\nset aside  %d\n", s.Pending, s.OldestAge, s.Delayed, s.Aside)
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
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.withApp(cmd.Context(), (*App).openStore, func(ctx context.Context, a *App) error {
				records, err := a.store.Outbox().List(ctx, aside, limit)
				if err != nil {
					return err
				}
				return list(c, records, []string{"ID", "TOPIC", "KEY", "CREATED", "ATTEMPTS", "ASIDE", "REASON"}, func(r outbox.Record) []string {
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
		RunE: func(cmd *cobra.Command, args []string) error {
			var ids []int64
			for _, arg := range args {
				id, err := parseID(arg)
				if err != nil {
					return err
				}
				ids = append(ids, id)
			}
			return c.withApp(cmd.Context(), (*App).openStore, func(ctx context.Context, a *App) error {
				n, err := act(a.store.Outbox(), ctx, ids)
				if err != nil {
					return err
				}
				fmt.Fprintf(c.out, "%d records\n", n)
				return nil
			})
		},
	}
}
