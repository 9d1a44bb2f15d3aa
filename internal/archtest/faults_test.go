package archtest

import (
	"go/ast"
	"go/types"
	"path"
	"slices"
	"strings"
	"testing"
)

// Faults cannot be switched on by accident: outside tests only packages for tests give a hook to an engine or a relay; the application passes
// on its probes, and only a trial's worker fills them.
func TestFaultsAreSetByTrialsAlone(t *testing.T) {
	const worker = "app/prove_worker.go"
	passed := []string{"a.probes.engine", "a.probes.relay"}
	hooks, filled := 0, 0
	set := func(name, value string) {
		hooks++
		if strings.HasSuffix(path.Dir(name), "test") || strings.HasPrefix(name, "app/") && slices.Contains(passed, value) {
			return
		}
		t.Errorf("%s gives a hook that is not a trial's: %s", name, value)
	}
	fill := func(name string) {
		filled++
		if name != worker {
			t.Errorf("%s fills probes, which only %s may", name, worker)
		}
	}
	eachFile(t, func(name string, file *ast.File, _ []byte) {
		if strings.HasSuffix(name, "_test.go") || strings.HasPrefix(name, "app/proof/") {
			return // the trial's report has faults that are no hooks
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CompositeLit:
				if ident, ok := n.Type.(*ast.Ident); ok && ident.Name == "probes" {
					fill(name)
				}
			case *ast.KeyValueExpr:
				if key, ok := n.Key.(*ast.Ident); ok && key.Name == "Fault" {
					set(name, types.ExprString(n.Value))
				}
			case *ast.AssignStmt:
				for i, left := range n.Lhs {
					to, ok := left.(*ast.SelectorExpr)
					if !ok {
						continue
					}
					if to.Sel.Name == "Fault" && i < len(n.Rhs) {
						set(name, types.ExprString(n.Rhs[i]))
					}
					if strings.Contains(types.ExprString(to.X), "probes") {
						fill(name)
					}
				}
			}
			return true
		})
	})
	if hooks < 4 || filled == 0 {
		t.Errorf("%d hooks and %d fillings of probes were found, and there are more: teach this test their new names", hooks, filled)
	}
}
