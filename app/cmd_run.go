package app

import (
	"context"
	"fmt"
	"runtime/debug"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
)

func (c *cli) runCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Consume messages and run their handlers",
		Args:  cobra.NoArgs,
		Example: `  oncemill run                                        embedded broker, SQLite, nothing to install
  oncemill run --broker rabbitmq --database postgres --config oncemill.yaml
  oncemill run --broker kafka --set brokers.kafka.brokers=localhost:9092`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.withApp(cmd.Context(), (*App).Open, c.run)
		},
	}
	return cmd
}

// run serves until ctx ends.
func (c *cli) run(ctx context.Context, a *App) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	server, err := a.newAdmin()
	if err != nil {
		return err
	}
	var group errgroup.Group
	if server != nil {
		a.log.Info("admin server listens", "address", server.listener.Addr().String())
		group.Go(func() error {
			defer cancel()
			return server.run()
		})
	}
	group.Go(func() error {
		defer func() {
			if server != nil {
				server.close()
			}
		}()
		return a.Run(ctx, c.force)
	})
	return group.Wait()
}

func (c *cli) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(c.out, version())
			return err
		},
	}
}

func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	text := info.Main.Version
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			text += " " + s.Value
		}
	}
	return text + " " + info.GoVersion
}
