package app

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/oncemill/oncemill/middleware/keystore"
)

func (c *cli) keysEpoch() *cobra.Command {
	var raise bool
	var by, why string
	cmd := &cobra.Command{
		Use: "epoch", Short: "Show the database's epoch, or begin a new one after a restore", Args: cobra.NoArgs,
		Long: `Show the database's epoch. What is remembered elsewhere (--keys redis) of completed keys counts for one epoch only.

A failover and a restore to a point in time begin a new epoch by themselves where the server tells them: PostgreSQL by its timeline, MySQL and
MariaDB by host, port and server_id. Nobody can tell that a copy of the files, or a dump, was put back onto the same server: then run
"keys epoch --raise" before the application starts again. Else a message whose key is remembered elsewhere, but gone with the database's
last hours, is taken for a duplicate and its effect stays lost.`,
		Example: "  oncemill keys epoch\n  oncemill keys epoch --raise --why 'restored the backup of last night'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.withStore(cmd.Context(), func(ctx context.Context, a *App) error {
				ask := a.store.Keys().Epoch
				if raise {
					ask = func(ctx context.Context) (string, error) { return a.store.Keys().RaiseEpoch(ctx, actor(by), why) }
				}
				epoch, err := ask(ctx)
				if err == nil && raise {
					err = a.awaitEpoch(ctx)
				}
				if err != nil {
					return err
				}
				_, err = fmt.Fprintln(c.out, epoch)
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&raise, "raise", false, "begin a new epoch: nothing that was remembered elsewhere counts any more")
	whoFlags(cmd, &by, &why)
	return cmd
}

// awaitEpoch waits, where keys are remembered elsewhere, until every process has left the epoch of before.
func (a *App) awaitEpoch(ctx context.Context) error {
	if len(a.elsewhereNames()) == 0 {
		return nil
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(keystore.EpochTrust):
		return nil
	}
}
