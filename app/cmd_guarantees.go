package app

import (
	"context"

	"github.com/spf13/cobra"
)

func (c *cli) guaranteesCommand() *cobra.Command {
	var declare, matrix bool
	cmd := &cobra.Command{
		Use: "guarantees", Short: "Print what is promised for each binding of this configuration, and why", Args: cobra.NoArgs,
		Long: `Print what is promised for each binding of this configuration, and why, what could break it, and what would not be allowed to start. The exit code is 3 if
anything is refused. It connects to broker and database, and changes nothing there without --declare.

With --matrix it prints every choice of broker, database and keys instead, what each means for a kind of handler, and why it is refused; it connects to nothing.`,
		Example: "  oncemill guarantees --broker rabbitmq --database postgres --config oncemill.yaml\n  oncemill guarantees --broker kafka --declare --json\n  oncemill guarantees --matrix",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if matrix {
				all := Matrix(c.set)
				if c.json {
					return printJSON(c.out, all)
				}
				return printMatrix(c.out, all)
			}
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
	cmd.Flags().BoolVar(&matrix, "matrix", false, "print every choice of broker, database and keys, and why it is refused where it is")
	cmd.MarkFlagsMutuallyExclusive("declare", "matrix")
	c.jsonFlag(cmd)
	return cmd
}
