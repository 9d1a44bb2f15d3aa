package app

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/oncemill/oncemill/app/starter"
)

func (c *cli) initCommand() *cobra.Command {
	var p starter.Project
	cmd := &cobra.Command{
		Use: "init DIR --module MODULE", Short: "Write a starting project: a main, a plugin with its tables, and its test", Args: cobra.ExactArgs(1),
		Long: "Write a Go module of your own into a new folder: a main that links the embedded broker, NATS, SQLite and PostgreSQL, one plugin with its\n" +
			"tables, a test that breaks the plugin's handler at each of its steps, and a configuration.",
		Example: "  oncemill init shop --module example.com/shop --plugin orders",
		RunE: func(_ *cobra.Command, args []string) error {
			if p.Checkout != "" {
				path, err := filepath.Abs(p.Checkout)
				if err != nil {
					return withCode(ExitUsage, err)
				}
				p.Checkout = path
			} else {
				p.Version = released()
			}
			names, err := p.Write(args[0])
			switch {
			case errors.Is(err, starter.ErrNotEmpty):
				return withCode(ExitRefused, err)
			case err != nil:
				return withCode(ExitUsage, err)
			}
			for _, name := range names {
				fmt.Fprintln(c.out, filepath.Join(args[0], filepath.FromSlash(name)))
			}
			_, err = fmt.Fprintf(c.out, "\nNow: cd %s && go mod tidy && go test ./... && go run . run --config oncemill.yaml\n", args[0])
			return err
		},
	}
	cmd.Flags().StringVar(&p.Module, "module", "", "path of the new Go module, such as example.com/shop")
	cmd.Flags().StringVar(&p.Plugin, "plugin", "orders", "name of the first plugin and of its package")
	cmd.Flags().StringVar(&p.Checkout, "checkout", "", "folder with Oncemill's source, to use in place of a released version")
	if err := cmd.MarkFlagRequired("module"); err != nil {
		panic(err) // the flag was defined above
	}
	return cmd
}

// released is this program's version where it is a released one, which a go.mod can require.
func released() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || !regexp.MustCompile(`^v[0-9]+\.[0-9]+\.[0-9]+$`).MatchString(info.Main.Version) {
		return ""
	}
	return info.Main.Version
}
