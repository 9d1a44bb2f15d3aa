package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/oncemill/oncemill/app/proof"
)

// proveWorkerCommand is a replica of a trial. It is told on standard input what to do, so that nothing else can break an application.
func (c *cli) proveWorkerCommand() *cobra.Command {
	return &cobra.Command{
		Use: "worker", Short: "A replica of a trial, for \"prove\" itself", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			w, err := proof.NewWorker(c.in, c.out)
			if err != nil {
				return withCode(ExitUsage, err)
			}
			c.file, c.flags, c.sets = w.Start.File, w.Start.Flags, nil
			ctx, cancel := context.WithCancelCause(cmd.Context())
			defer cancel(nil)
			go func() { cancel(w.Obey()) }()
			if err := c.replica(ctx, w); err != nil {
				return err
			}
			if gone := context.Cause(ctx); !errors.Is(gone, context.Canceled) {
				return gone
			}
			return nil
		},
	}
}

// startTries is how often a replica tries to start: an outage is no fault of its own, and whoever looks after a service would start it again.
const startTries = 20

// replica runs the application until it is told to stop.
func (c *cli) replica(ctx context.Context, w *proof.Worker) (err error) {
	for range startTries {
		var a *App
		if a, err = c.app(); err != nil {
			return err
		}
		a.probes = probes{
			engine: w.Engine, relay: w.Relay, observe: w.Observe, subscriber: w.Subscriber, publisher: w.Publisher, lease: w.Start.Lease,
			toDatabase: w.Database.Dial, toBroker: w.Broker.Dial, toKeys: w.Keys.Dial,
		}
		err = a.runWatched(ctx, w)
		if ctx.Err() != nil || a.state.consumers.Load() != nil {
			return err
		}
		a.log.Warn("the replica cannot start yet", "err", err)
		if !sleep(ctx, time.Second) {
			return nil
		}
	}
	return fmt.Errorf("start a replica: %w", err)
}

// runWatched runs the application once, and says when it consumes.
func (a *App) runWatched(ctx context.Context, w *proof.Worker) (err error) {
	defer func() { err = errors.Join(err, a.Close()) }()
	if err := within(ctx, servicePatience, a, (*App).Open); err != nil {
		return err
	}
	watching, cancel := context.WithCancel(ctx)
	ready := make(chan struct{})
	go func() {
		defer close(ready)
		for a.Ready(watching) != nil {
			if !sleep(watching, 20*time.Millisecond) {
				return
			}
		}
		w.Ready()
	}()
	defer func() { cancel(); <-ready }()
	return a.Run(ctx, nil)
}
