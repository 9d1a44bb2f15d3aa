package app

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
)

func (c *cli) migrateCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "migrate", Short: "Bring the database's tables up to date"}
	cmd.AddCommand(
		&cobra.Command{
			Use: "up", Short: "Apply what is missing; safe when several run at once", Args: cobra.NoArgs,
			Example: "  oncemill migrate up --database postgres --set databases.postgres.dsn_file=/run/secrets/dsn",
			RunE: func(cmd *cobra.Command, _ []string) error {
				return c.withApp(cmd.Context(), (*App).openStore, func(ctx context.Context, a *App) error {
					if err := a.migrateUp(ctx); err != nil {
						return err
					}
					_, err := fmt.Fprintln(c.out, "the tables are up to date")
					return err
				})
			},
		},
		c.migrateStatus(),
	)
	return cmd
}

func (c *cli) migrateStatus() *cobra.Command {
	cmd := &cobra.Command{
		Use: "status", Short: "List what is missing", Args: cobra.NoArgs,
		Example: "  oncemill migrate status --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.withApp(cmd.Context(), (*App).openStore, func(ctx context.Context, a *App) error {
				pending, err := a.pending(ctx)
				if err != nil {
					return err
				}
				if c.json {
					return printJSON(c.out, append([]string{}, pending...))
				}
				for _, p := range pending {
					fmt.Fprintln(c.out, p)
				}
				_, err = fmt.Fprintf(c.out, "%d migrations are missing\n", len(pending))
				return err
			})
		},
	}
	c.jsonFlag(cmd)
	return cmd
}
