package app

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/oncemill/oncemill/config"
)

func (c *cli) configCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "config", Short: "Check or print the configuration"}
	cmd.AddCommand(
		&cobra.Command{
			Use: "check", Short: "Check everything that can be checked without a connection", Args: cobra.NoArgs,
			Example: "  oncemill config check --config oncemill.yaml",
			RunE: func(*cobra.Command, []string) error {
				a, err := c.app()
				if err != nil {
					return err
				}
				if err := errors.Join(a.checkBroker(), a.checkStore(), a.checkKeys(), a.Close()); err != nil {
					return err
				}
				_, err = fmt.Fprintln(c.out, "the configuration is good")
				return err
			},
		},
		&cobra.Command{
			Use: "print", Short: "Print the effective configuration, without secrets", Args: cobra.NoArgs,
			Example: "  oncemill config print --config oncemill.yaml",
			RunE: func(*cobra.Command, []string) error {
				cfg, err := c.load()
				if err != nil {
					return withCode(ExitUsage, err)
				}
				return cfg.Print(c.out)
			},
		},
	)
	return cmd
}

// load reads the configuration from defaults, file, environment and flags.
func (c *cli) load() (*config.Config, error) {
	for _, set := range c.sets {
		path, value, ok := strings.Cut(set, "=")
		if !ok {
			return nil, fmt.Errorf("--set %q is not path=value", set)
		}
		c.flags[path] = value
	}
	return config.Load(config.LoadOptions{File: c.file, Env: c.env, Flags: c.flags, Known: c.known()})
}

// known is what this program has linked in, for the names in the configuration.
func (c *cli) known() config.Known {
	k := config.Known{Brokers: c.brokerNames(), Databases: c.storeNames(), Keys: c.set.keyPlaces()}
	for _, p := range c.set.Plugins {
		k.Plugins = append(k.Plugins, p.Name)
	}
	return k
}
