package app

import (
	"context"

	"github.com/spf13/cobra"
)

func (c *cli) guaranteesCommand() *cobra.Command {
	var declare bool
	cmd := &cobra.Command{
		Use: "guarantees", Short: "Print what is promised for each binding of this configuration, and why", Args: cobra.NoArgs,
		Long: `Print what is promised for each binding of this configuration, and why, what could break it, and what would not be allowed to start. The exit code is 3 if
anything is refused. It connects to broker and database, and changes nothing there without --declare.`,
		Example: "  oncemill guarantees --broker rabbitmq --database postgres --config oncemill.yaml\n  oncemill guarantees --broker kafka --declare --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.withApp(cmd.Context(), (*App).Open, func(ctx context.Context, a *App) error {
				if declare {
					if err := a.declare(ctx); err != nil {
						return err
					}
				}
				promises := a.promises()
				if c.json {
					if err := printJSON(c.out, promises); err != nil {
						return err
					}
				} else {
					for _, p := range promises {
						p.print(c.out)
					}
				}
				return withCode(ExitRefused, refusals(promises))
			})
		},
	}
	cmd.Flags().BoolVar(&declare, "declare", false, "first make sure of the topics as run does: how long Kafka can redeliver is known only then")
	c.jsonFlag(cmd)
	return cmd
}
