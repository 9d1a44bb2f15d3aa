package app

import (
	"context"

	"github.com/spf13/cobra"
)

func (c *cli) guaranteesCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "guarantees", Short: "Print what is promised for each binding of this configuration, and why", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.withApp(cmd.Context(), (*App).Open, func(ctx context.Context, a *App) error {
				promises := a.promises()
				if c.json {
					return printJSON(c.out, promises)
				}
				for _, p := range promises {
					p.print(c.out)
				}
				return withCode(ExitRefused, refusals(promises))
			})
		},
	}
	c.jsonFlag(cmd)
	return cmd
}
