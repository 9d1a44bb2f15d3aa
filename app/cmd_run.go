package app

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.opentelemetry.io/otel"
	"golang.org/x/sync/errgroup"

	"github.com/oncemill/oncemill/config"
)

func (c *cli) runCommand() *cobra.Command {
	var only []string
	var noRelay bool
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Consume messages and run their handlers",
		Long: `Consume messages and run their handlers until a signal. The first SIGINT or SIGTERM stops gracefully, within shutdown_timeout; a second one
hands back at once what is left.`,
		Args: cobra.NoArgs,
		Example: `  oncemill run                                        embedded broker, SQLite, nothing to install
  oncemill run --broker rabbitmq --database postgres --config oncemill.yaml
  oncemill run --broker kafka --set brokers.kafka.brokers=localhost:9092
  oncemill run --only payments --no-relay`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c.serving = true
			if noRelay {
				c.flags["relay.enabled"] = "false"
			}
			check := func(a *App, _ context.Context) error {
				return errors.Join(a.restrict(only), a.checkStore(), a.checkKeys(), a.checkBroker())
			}
			return c.withApp(cmd.Context(), check, c.run)
		},
	}
	cmd.Flags().StringSliceVar(&only, "only", nil, "run only this binding; may be repeated. The others' queues are kept")
	cmd.Flags().BoolVar(&noRelay, "no-relay", false, "leave publishing the outbox to other processes")
	return cmd
}

// restrict makes Run run only the named bindings.
func (a *App) restrict(only []string) error {
	for _, name := range only {
		if !slices.ContainsFunc(a.bindings, func(b binding) bool { return b.name == name }) {
			return withCode(ExitUsage, fmt.Errorf("--only %q is no binding of this configuration; it has %s", name, strings.Join(a.bindingNames(), ", ")))
		}
	}
	a.only = only
	return nil
}

func (a *App) bindingNames() []string {
	names := make([]string, len(a.bindings))
	for i, b := range a.bindings {
		names[i] = b.name
	}
	return names
}

// run serves until ctx ends. The admin server comes first: a taken port is known before anything is connected, and
// /healthz answers while a slow broker is being reached.
func (c *cli) run(ctx context.Context, a *App) error {
	server, err := a.newAdmin()
	if err != nil {
		return err
	}
	if a.cfg.Telemetry.OTLPEndpoint != "" { // OpenTelemetry has one handler for a process, which would print otherwise
		otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
			a.log.Warn("traces cannot be sent", "err", config.RedactText(err.Error()))
		}))
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var group errgroup.Group
	if server != nil {
		a.log.Info("admin server listens", "address", server.listener.Addr().String())
		group.Go(func() error {
			defer cancel()
			return server.run()
		})
	}
	group.Go(func() error {
		defer server.close()
		a.log.Info("connecting", "broker", a.cfg.Broker, "database", a.cfg.Database)
		err := within(ctx, or(c.patience, servicePatience), a, (*App).Open)
		if err == nil {
			err = a.Run(ctx, c.force)
		}
		if err != nil && ctx.Err() != nil && a.state.consumers.Load() == nil {
			a.log.Info("stopped before anything was consumed", "err", err)
			return nil
		}
		return err
	})
	return group.Wait()
}

func (c *cli) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  oncemill version",
		Args:    cobra.NoArgs,
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
