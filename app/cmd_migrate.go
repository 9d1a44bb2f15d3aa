package app

import (
	"context"
	"errors"
	"fmt"
	"io"

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
		c.migratePrint(),
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

func (c *cli) migratePrint() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use: "print", Short: "Print the SQL that up would run", Args: cobra.NoArgs,
		Long: `Print the SQL that up would run, for somebody else to apply: afterwards nothing is missing, and "migrate: verify" is content. Let the
client stop at the first error. What was not applied is printed again the next time.`,
		Example: `  oncemill migrate print --database postgres > new.sql && psql -v ON_ERROR_STOP=1 -f new.sql
  oncemill migrate print --database mysql > new.sql && mysql < new.sql
  oncemill migrate print --database sqlite > new.sql && sqlite3 -bail oncemill-data/oncemill.db < new.sql
  oncemill migrate print --all   # for an empty database; connects to nothing`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if all {
				a, err := c.app()
				if err != nil {
					return err
				}
				script, err := a.wholeScript()
				return c.printScript(script, errors.Join(err, a.Close()))
			}
			return c.withApp(cmd.Context(), (*App).openStore, func(ctx context.Context, a *App) error {
				sets, err := a.migrations()
				if err != nil {
					return err
				}
				script, err := a.store.PendingScript(ctx, sets)
				return c.printScript(script, err)
			})
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "all that an empty database needs, without a connection")
	return cmd
}

func (c *cli) printScript(script string, err error) error {
	if err != nil {
		return err
	}
	if script == "" {
		script = "-- nothing is missing\n"
	}
	_, err = io.WriteString(c.out, script)
	return err
}
