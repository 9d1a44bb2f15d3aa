// Package archtest executes the rules of the house: who may import whom, how long a file may be,
// and what no package may do.
package archtest

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

const module = "github.com/oncemill/oncemill/"

// rule says what the packages below a folder may import of this module. The first rule whose prefix matches counts.
type rule struct {
	pkg string   // the package, or all below it with a trailing "/..."
	may []string // likewise
	why string
}

var rules = []rule{
	{"cmd/...", []string{"app", "app/builtin", "internal/testenv/..."}, "main only starts the application"},
	{"config", nil, "configuration is plain data and knows no adapter"},
	{"middleware/envelope", nil, "the message contract is a leaf"},
	{"middleware/faultpoint", nil, "the list of steps is a leaf"},
	{"middleware/outbox", []string{"middleware/envelope", "middleware/faultpoint"}, "a contract knows no implementation"},
	{"middleware/parking", []string{"middleware/envelope"}, "a contract knows no implementation"},
	{"middleware/transact", nil, "a contract knows no implementation"},
	{"middleware/keystore", []string{"middleware/envelope", "middleware/outbox", "middleware/parking"}, "a contract knows no implementation"},
	{"middleware/keystore/elsewhere", []string{"middleware/envelope", "middleware/keystore"}, "it joins contracts, not implementations"},
	{"middleware/outbox/outboxtest", []string{"middleware/..."}, "a conformance suite knows contracts only"},
	{"middleware/parking/parkingtest", []string{"middleware/..."}, "a conformance suite knows contracts only"},
	{"middleware/keystore/keystoretest", []string{"middleware/..."}, "a conformance suite knows contracts only"},
	{"middleware/idempotency", []string{"middleware/envelope", "middleware/faultpoint", "middleware/outbox", "middleware/parking", "middleware/keystore", "middleware/keystore/elsewhere", "middleware/transact"}, "the core works without the rest of Oncemill"},
	{"middleware", []string{"middleware/..."}, "the chain works in any Watermill router"},
	{"handlers", []string{"middleware/envelope", "middleware/outbox"}, "the plugin contract knows contracts, and no engine"},
	{"handlers/handlertest/...", []string{"handlers/...", "middleware/...", "adapters/...", "internal/pluginbind"}, "the kit may know everything but app"},
	{"handlers/internal/...", []string{"handlers", "middleware/envelope", "internal/testenv/..."}, "what plugins' tests share"},
	{"handlers/dynamocounters", []string{"handlers", "handlers/dynamotx", "handlers/internal/..."}, "a plugin knows the plugin contract and its kind of handler only"},
	{"handlers/dynamopayments", []string{"handlers", "handlers/dynamotx", "handlers/internal/..."}, "a plugin knows the plugin contract and its kind of handler only"},
	{"handlers/dynamotx", []string{"handlers", "handlers/internal/...", "middleware/envelope", "middleware/outbox", "internal/awsconf", "internal/awsclock"}, "a kind of handler knows contracts only"},
	{"handlers/...", []string{"handlers", "handlers/internal/...", "middleware/envelope"}, "a plugin knows the plugin contract only"},
	{"adapters/broker", []string{"middleware/envelope", "middleware/outbox", "middleware/transact"}, "a contract knows no implementation"},
	{"adapters/store", []string{"middleware/envelope", "middleware/outbox", "middleware/parking", "middleware/keystore"}, "a contract knows no implementation"},
	{"adapters/broker/...", []string{"adapters/broker", "adapters/internal/...", "internal/awsconf", "middleware/envelope", "middleware/outbox", "middleware/transact"}, "adapters know contracts, never each other"},
	{"adapters/store/...", []string{"adapters/store", "adapters/internal/...", "internal/awsconf", "internal/awsclock", "middleware/envelope", "middleware/outbox", "middleware/parking", "middleware/keystore"}, "adapters know contracts, never each other"},
	{"adapters/internal/...", []string{"adapters/broker", "adapters/store", "adapters/internal/...", "middleware/envelope", "middleware/outbox", "middleware/parking", "middleware/keystore"}, "adapters know contracts only"},
	{"internal/testenv/...", []string{"internal/testenv/..."}, "test servers know nothing of the product"},
	{"app/proof/history", nil, "a verdict depends on the history alone"},
	{"app/proof", []string{"app/proof/history", "handlers", "middleware/..."}, "a trial knows neither adapters nor plugins: what is not linked stays out"},
	{"app/...", []string{"..."}, "app composes and may know everybody"},
	{"examples/...", []string{"adapters/broker/...", "adapters/store/...", "handlers", "middleware/..."}, "an example has what a program of one's own can import, without app"},
	{"internal/awsconf", nil, "how Amazon's services are reached knows no contract"},
	{"internal/awsclock", nil, "the time of Amazon's services knows no contract"},
	{"internal/...", []string{"..."}, "tests of the whole may know everybody"},
}

// Test code may import, besides, what its package is tested with.
var testMay = []string{"internal/testenv/...", "middleware/...", "adapters/...", "handlers/..."}

func TestImportsRunOneWay(t *testing.T) {
	eachFile(t, func(name string, file *ast.File, _ []byte) {
		pkg := path.Dir(name)
		r, found := ruleFor(pkg)
		if !found {
			t.Errorf("%s: no rule for this package: add one to rules, with its reason", name)
			return
		}
		may := append([]string{pkg}, r.may...)
		if strings.HasSuffix(name, "_test.go") {
			may = append(may, testMay...)
		}
		for _, imp := range file.Imports {
			target, ours := strings.CutPrefix(strings.Trim(imp.Path.Value, `"`), module)
			if ours && !anyMatch(may, target) {
				t.Errorf("%s imports %s: %s", name, target, r.why)
			}
		}
	})
}

// Long files hide their subject.
func TestFilesAreShort(t *testing.T) {
	const limit = 600
	eachFile(t, func(name string, _ *ast.File, source []byte) {
		if lines := bytes.Count(source, []byte("\n")); lines > limit {
			t.Errorf("%s has %d lines, more than %d: split it by subject", name, lines, limit)
		}
	})
}

// Registration is an explicit value, so no package of ours does anything before main.
func TestNoInit(t *testing.T) {
	eachFile(t, func(name string, file *ast.File, _ []byte) {
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "init" {
				t.Errorf("%s has a func init", name)
			}
		}
	})
}

// What carries a promise says it: adapters, plugins and the engine have a Guarantees heading.
func TestGuaranteesAreWritten(t *testing.T) {
	said := map[string]bool{}
	eachFile(t, func(name string, file *ast.File, _ []byte) {
		pkg := path.Dir(name)
		promises := strings.HasPrefix(pkg, "adapters/broker/") && strings.HasSuffix(pkg, "broker") ||
			strings.HasPrefix(pkg, "adapters/store/") && strings.HasSuffix(pkg, "store") ||
			strings.HasPrefix(pkg, "handlers/") && strings.Count(pkg, "/") == 1 && pkg != "handlers/handlertest" ||
			pkg == "middleware/idempotency" || pkg == "handlers"
		if promises && !strings.HasSuffix(name, "_test.go") {
			said[pkg] = said[pkg] || file.Doc != nil && strings.Contains(file.Doc.Text(), "# Guarantees")
		}
	})
	for pkg, ok := range said {
		if !ok {
			t.Errorf("%s: the package comment has no heading \"# Guarantees\"", pkg)
		}
	}
}

func TestPackageNamesSaySomething(t *testing.T) {
	for _, name := range []string{"util", "utils", "common", "helpers", "types", "interfaces"} {
		eachFile(t, func(file string, f *ast.File, _ []byte) {
			if f.Name.Name == name {
				t.Errorf("%s: package %s says nothing about its subject", file, name)
			}
		})
	}
}

func ruleFor(pkg string) (rule, bool) {
	for _, r := range rules {
		if match(r.pkg, pkg) {
			return r, true
		}
	}
	return rule{}, false
}

func anyMatch(patterns []string, pkg string) bool {
	for _, p := range patterns {
		if match(p, pkg) {
			return true
		}
	}
	return false
}

func match(pattern, pkg string) bool {
	folder, below := strings.CutSuffix(pattern, "...")
	if below {
		return strings.HasPrefix(pkg+"/", folder)
	}
	return pattern == pkg
}

// eachFile reads every Go file of the module itself: a child process's reads would not count for the test cache.
func eachFile(t *testing.T, visit func(name string, file *ast.File, source []byte)) {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	files := 0
	err = fs.WalkDir(os.DirFS(root), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && (name == ".git" || name == "internal/tools" || strings.HasSuffix(name, "testdata")) {
			return fs.SkipDir
		}
		if entry.IsDir() || !strings.HasSuffix(name, ".go") {
			return nil
		}
		source, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, source, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		files++
		visit(name, file, source)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files == 0 {
		t.Fatal("no Go file found")
	}
}
