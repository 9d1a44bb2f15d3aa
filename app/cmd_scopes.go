package app

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"
)

// scopeView is a scope in the database, as "keys scopes" prints it.
type scopeView struct {
	Scope   string `json:"scope"`
	Keys    int64  `json:"keys"`
	Binding string `json:"binding,omitempty"` // empty: no binding of this configuration uses it
}

func (c *cli) keysScopes() *cobra.Command {
	cmd := &cobra.Command{
		Use: "scopes", Short: "List the scopes that have keys or parked messages, and the bindings that use them", Args: cobra.NoArgs,
		Example: "  oncemill keys scopes --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.withStore(cmd.Context(), func(ctx context.Context, a *App) error {
				scopes, err := a.store.Keys().Scopes(ctx)
				if err != nil {
					return err
				}
				var views []scopeView
				for _, scope := range slices.Sorted(maps.Keys(scopes)) {
					views = append(views, scopeView{scope, scopes[scope], a.bindingOf(scope)})
				}
				return list(c, views, []string{"SCOPE", "KEYS", "BINDING"}, func(v scopeView) []string {
					return []string{v.Scope, fmt.Sprint(v.Keys), orDash(v.Binding)}
				})
			})
		},
	}
	c.jsonFlag(cmd)
	return cmd
}

func (c *cli) keysClean() *cobra.Command {
	return &cobra.Command{
		Use: "clean SCOPE", Short: "Remove the expired keys of a scope that no binding uses any more", Args: cobra.ExactArgs(1),
		Long: `Remove the expired keys of a scope that no binding uses any more; of one in use, run removes them. No process may use the scope, not with another
configuration either: it could meet copies of messages whose keys are gone. Keys that have not expired stay, as do those in progress, in doubt, or of a parked
message.`,
		Example: "  oncemill keys scopes\n  oncemill keys clean oncemill/letters",
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.withStore(cmd.Context(), func(ctx context.Context, a *App) error { return c.cleanScope(ctx, a, args[0]) })
		},
	}
}

func (c *cli) cleanScope(ctx context.Context, a *App, scope string) error {
	if name := a.bindingOf(scope); name != "" {
		return withCode(ExitRefused, fmt.Errorf("binding %s uses the scope %s: run removes its keys when they expire", name, scope))
	}
	scopes, err := a.store.Keys().Scopes(ctx)
	if err != nil {
		return err
	}
	left, known := scopes[scope]
	if !known {
		return withCode(ExitMissing, fmt.Errorf("no key and no parked message has the scope %s", scope))
	}
	removed := 0
	for {
		n, err := a.store.Keys().Clean(ctx, scope, cleanBatch)
		if err != nil {
			return fmt.Errorf("after %d keys: %w", removed, err)
		}
		removed += n
		if n < cleanBatch {
			break
		}
	}
	_, err = fmt.Fprintf(c.out, "expired keys removed: %d; others, which stay: %d\n", removed, left-int64(removed))
	return err
}
