package starter_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/app/starter"
	"github.com/oncemill/oncemill/internal/testenv"
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

	linked := p.run("go", "list", "-deps", ".")
	require.Contains(t, linked, "adapters/broker/natsbroker")
	for _, foreign := range []string{"sarama", "amqp091", "go-sql-driver", "watermill-kafka", "watermill-amqp", "handlers/payments", "testify"} {
		require.NotContains(t, linked, foreign)
	}
}

// The written program consumes: an order that is published twice counts once.
func TestProjectRuns(t *testing.T) {
	t.Parallel()
	p := write(t)
	p.run("go", "build", "-o", "shop", ".")
	program := filepath.Join(p.dir, "shop")
	log, err := os.Create(filepath.Join(p.dir, "log"))
	require.NoError(t, err)
	defer log.Close()
	service := p.command(program, "run", "--config", "oncemill.yaml", "--set", "admin.listen=")
	service.Stdout, service.Stderr = log, log
	require.NoError(t, service.Start())
	ended := make(chan error, 1)
	go func() { ended <- service.Wait() }()
	t.Cleanup(func() { _ = service.Process.Kill() })

	const order = `{"id":"o1","customer":"alice","cents":1250}`
	for range 2 {
		p.run(program, "publish", "orders.placed", "--config", "oncemill.yaml", "--key", "order-1", "--data", order)
	}
	testenv.Eventually(t, time.Minute, func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		show := exec.CommandContext(ctx, program, "keys", "show", "order-1", "--config", "oncemill.yaml")
		show.Dir = p.dir
		out, err := show.CombinedOutput()
		if err == nil && !strings.Contains(string(out), "completed") {
			err = errors.New(string(out))
		}
		return err
	})
	require.NoError(t, service.Process.Signal(syscall.SIGTERM))
	if err := <-ended; err != nil {
		text, _ := os.ReadFile(log.Name())
		require.NoError(t, err, "%s", text)
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
