package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/oncemill/oncemill/config"
)

// Exit codes.
const (
	ExitOK      = 0
	ExitFailed  = 1 // something did not work; the text says what
	ExitUsage   = 2 // the command line or the configuration is wrong; nothing was done
	ExitRefused = 3 // the action would break a promise and was not done
	ExitMissing = 4 // what was asked for does not exist
)

// exitError is an error with its exit code.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

func withCode(code int, err error) error {
	if err == nil {
		return nil
	}
	return &exitError{code, err}
}

// Main runs the command line of an application made of set, with the process's arguments, and returns the
// exit code. A first SIGINT or SIGTERM stops gracefully, a second one at once.
func Main(set Set) int {
	ctx, force, stop := signals()
	defer stop()
	c := &cli{set: set, in: os.Stdin, out: os.Stdout, errs: os.Stderr, env: os.Environ(), force: force}
	return c.main(ctx, os.Args[1:])
}

// signals returns a context that ends at the first signal, and a channel that is closed at the second.
func signals() (context.Context, <-chan struct{}, func()) {
	ctx, cancel := context.WithCancel(context.Background())
	caught := make(chan os.Signal, 2)
	signal.Notify(caught, os.Interrupt, syscall.SIGTERM)
	force := make(chan struct{})
	go func() {
		for n := 0; n < 2; n++ {
			if _, ok := <-caught; !ok {
				return
			}
			if n == 0 {
				cancel()
			} else {
				signal.Stop(caught) // a third ends the process, whatever it does
				close(force)
			}
		}
	}()
	return ctx, force, func() { signal.Stop(caught); close(caught); cancel() }
}

// cli is one invocation of the command line.
type cli struct {
	set   Set
	in    io.Reader
	out   io.Writer
	errs  io.Writer
	env   []string
	force <-chan struct{}
	// patience, where not 0, is in place of commandPatience and servicePatience.
	patience time.Duration

	file  string
	flags map[string]string // configuration paths to the values that flags gave
	sets  []string
	json  bool

	begun   bool // a command runs; before that every error is the command line's
	serving bool // the command serves and logs what happens; others only warn
}

func (c *cli) main(ctx context.Context, args []string) int {
	c.flags = map[string]string{}
	root := c.root()
	root.SetArgs(args)
	root.SetIn(c.in)
	root.SetOut(c.out)
	root.SetErr(c.errs)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return ExitOK
	}
	fmt.Fprintf(c.errs, "%s: %s\n", c.set.Service, harmless(err.Error()))
	coded := (*exitError)(nil)
	switch {
	case errors.As(err, &coded):
		return coded.code
	case !c.begun:
		return ExitUsage
	}
	return ExitFailed
}

func (c *cli) root() *cobra.Command {
	root := &cobra.Command{
		Use:           c.set.Service,
		Short:         "Event handlers whose effect happens exactly once",
		Long:          "Brokers deliver a message at least once; " + c.set.Service + " makes its effect happen exactly once.\nEvery setting can come from a file (--config), the environment (ONCEMILL_...) or a flag.",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	p := root.PersistentFlags()
	p.StringVarP(&c.file, "config", "c", "", "configuration file (YAML)")
	p.StringArrayVar(&c.sets, "set", nil, "any setting as path=value, such as brokers.rabbitmq.url=amqp://...; may be repeated")
	for _, f := range []struct{ name, path, help string }{
		{"service", "service", "name of the application: the first part of every scope"},
		{"broker", "broker", "where messages come from: " + strings.Join(c.brokerNames(), ", ")},
		{"database", "database", "where effects, keys and the outbox are kept: " + strings.Join(c.storeNames(), ", ")},
		{"keys", "keys", "where keys are kept: " + strings.Join(c.set.keyPlaces(), ", ")},
		{"data-dir", "data_dir", "folder of the embedded broker and of SQLite"},
		{"log-level", "log.level", "debug, info, warn or error"},
		{"log-format", "log.format", "text or json"},
	} {
		p.Var(&pathFlag{c.flags, f.path}, f.name, f.help)
	}
	complete(root, "broker", c.brokerNames()...)
	complete(root, "database", c.storeNames()...)
	complete(root, "keys", c.set.keyPlaces()...)
	complete(root, "log-level", "debug", "info", "warn", "error")
	complete(root, "log-format", "text", "json")
	root.AddCommand(
		c.demoCommand(), c.proveCommand(), c.initCommand(), c.runCommand(), c.publishCommand(), c.migrateCommand(),
		c.keysCommand(), c.dlqCommand(), c.outboxCommand(), c.guaranteesCommand(), c.configCommand(), c.versionCommand(),
	)
	c.fit(root)
	return root
}

// fit makes the commands below cmd this application's: examples under its name, an error with a suggestion for an unknown
// subcommand, and a note of when a command has begun.
func (c *cli) fit(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		sub.Example = strings.ReplaceAll(sub.Example, "  oncemill ", "  "+c.set.Service+" ")
		if run := sub.RunE; run != nil {
			sub.RunE = func(cmd *cobra.Command, args []string) error {
				c.begun = true
				return run(cmd, args)
			}
		} else {
			sub.RunE = unknownSubcommand
			sub.SuggestionsMinimumDistance = 2
			sub.FParseErrWhitelist.UnknownFlags = true // they are the misspelt subcommand's
		}
		c.fit(sub)
	}
}

// unknownSubcommand is what a group of commands does itself.
func unknownSubcommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	text := fmt.Sprintf("unknown command %q for %q", args[0], cmd.CommandPath())
	if like := cmd.SuggestionsFor(args[0]); len(like) > 0 {
		text += "; did you mean \"" + strings.Join(like, "\" or \"") + "\"?"
	}
	return errors.New(text)
}

// complete lets the shell complete a flag's values.
func complete(cmd *cobra.Command, flag string, values ...string) {
	err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	if err != nil {
		panic(err) // the flag was defined beside this call
	}
}

// pathFlag is a flag that sets a path of the configuration.
type pathFlag struct {
	values map[string]string
	path   string
}

func (f *pathFlag) String() string     { return "" }
func (f *pathFlag) Type() string       { return "value" }
func (f *pathFlag) Set(v string) error { f.values[f.path] = v; return nil }

func (c *cli) brokerNames() []string {
	var names []string
	for _, b := range c.set.Brokers {
		names = append(names, b.Name)
	}
	return names
}

func (c *cli) storeNames() []string {
	var names []string
	for _, s := range c.set.Stores {
		names = append(names, s.Name)
	}
	return names
}

// logger writes to standard error, so that standard output is the command's answer alone.
func (c *cli) logger(cfg *config.Config) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(cfg.Log.Level)); err != nil {
		level = slog.LevelInfo
	}
	if !c.serving && cfg.Where("log.level") == "" {
		level = slog.LevelWarn
	}
	opts := &slog.HandlerOptions{Level: level}
	if cfg.Log.Format == "json" {
		return slog.New(slog.NewJSONHandler(c.errs, opts))
	}
	return slog.New(slog.NewTextHandler(c.errs, opts))
}

// withApp loads the configuration, makes the application, opens what open names, and calls f.
func (c *cli) withApp(ctx context.Context, open func(*App, context.Context) error, f func(context.Context, *App) error) (err error) {
	a, err := c.app()
	if err != nil {
		return err
	}
	defer func() {
		if closing := a.Close(); err == nil {
			err = closing
		}
	}()
	if err := within(ctx, or(c.patience, commandPatience), a, open); err != nil {
		return err
	}
	return f(ctx, a)
}

// How long commands, and a service at its start, try to reach broker and database: adapters try until their context ends.
const (
	commandPatience = 15 * time.Second
	servicePatience = time.Minute
)

// within calls open with a bounded context.
func within(ctx context.Context, patience time.Duration, a *App, open func(*App, context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return open(a, ctx)
}

// withStore is withApp for commands that only need the database.
func (c *cli) withStore(ctx context.Context, f func(context.Context, *App) error) error {
	return c.withApp(ctx, (*App).openStore, func(ctx context.Context, a *App) error {
		err := f(ctx, a)
		coded := (*exitError)(nil)
		if err == nil || errors.As(err, &coded) || ctx.Err() != nil {
			return err
		}
		if pending, unread := a.pending(ctx); unread == nil && len(pending) > 0 {
			return fmt.Errorf("%w\nthe database lacks %d migrations: run \"%s migrate up\" first", err, len(pending), c.set.Service)
		}
		return err
	})
}

// app loads the configuration and makes the application; it connects to nothing.
func (c *cli) app() (*App, error) {
	cfg, err := c.load()
	if err != nil {
		return nil, withCode(ExitUsage, err)
	}
	a, err := New(c.set, cfg, c.logger(cfg))
	return a, withCode(ExitUsage, err)
}
