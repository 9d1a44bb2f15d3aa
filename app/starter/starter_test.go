package starter_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/app/starter"
)

// project is a written project, in which commands are run.
type project struct {
	t   *testing.T
	dir string
}

// write writes a project that uses the source in this tree.
func write(t *testing.T) project {
	t.Helper()
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	p := project{t, filepath.Join(t.TempDir(), "shop")}
	names, err := starter.Project{Module: "example.com/shop/v2", Plugin: "orders", Checkout: root}.Write(p.dir)
	require.NoError(t, err)
	require.Contains(t, names, "orders/orders_test.go")
	sums, err := os.ReadFile(filepath.Join(root, "go.sum"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(p.dir, "go.sum"), sums, 0o600))
	p.run("go", "mod", "tidy")
	return p
}

func (p project) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Dir = p.dir
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod")
	return cmd
}

func (p project) run(name string, args ...string) string {
	p.t.Helper()
	out, err := p.command(name, args...).CombinedOutput()
	require.NoError(p.t, err, "%s %s: %s", name, strings.Join(args, " "), out)
	return string(out)
}

// What is written compiles and passes at once, and links only what its main names.
func TestProjectPasses(t *testing.T) {
	t.Parallel()
	p := write(t)
	require.Empty(t, p.run("gofmt", "-l", "."))
	p.run("go", "vet", "./...")
	require.Contains(t, p.run("go", "test", "-v", "./..."), "--- PASS: TestOrderCountsOnce/")

	require.Contains(t, p.run("go", "run", ".", "prove", "--config", "oncemill.yaml", "--only", "matrix", "--step", "committed", "--fault", "kill"), "Every effect happened exactly once.")

	linked := p.run("go", "list", "-deps", ".")
	for _, named := range []string{"adapters/broker/natsbroker", "adapters/broker/rabbitbroker", "adapters/store/pgstore"} {
		require.Contains(t, linked, named)
	}
	for _, foreign := range []string{"sarama", "go-sql-driver", "watermill-kafka", "aws-sdk-go", "go-redis", "handlers/payments", "handlers/dynamotx", "testify"} {
		require.NotContains(t, linked, foreign)
	}
}

func TestBadNamesAreRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, p := range []starter.Project{
		{Module: "", Plugin: "orders"},
		{Module: "example.com/shop/", Plugin: "orders"},
		{Module: "example.com/my shop", Plugin: "orders"},
		{Module: "example.com/shop", Plugin: ""},
		{Module: "example.com/shop", Plugin: "Orders"},
		{Module: "example.com/shop", Plugin: "main"},
	} {
		_, err := p.Write(dir)
		require.Error(t, err, p)
	}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, entries)

	require.NoError(t, os.WriteFile(filepath.Join(dir, "mine"), nil, 0o600))
	_, err = starter.Project{Module: "example.com/shop", Plugin: "orders"}.Write(dir)
	require.ErrorIs(t, err, starter.ErrNotEmpty)
}
