package starter_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/internal/testenv/walkthrough"
)

// The tutorial is done as it is written, with the addresses of the tests' servers. Its Go blocks stand in the project that it makes.
func TestTutorial(t *testing.T) {
	t.Parallel()
	rabbit, postgres := testenv.RabbitMQ(t), testenv.Postgres(t)
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.Symlink(root, filepath.Join(dir, "oncemill")))
	sums, err := os.ReadFile(filepath.Join(root, "go.sum"))
	require.NoError(t, err)
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "ONCEMILL_") })
	// The sums of this module's go.sum are those of its own dependencies; nothing else is asked for.
	sh := walkthrough.Open(t, dir, append(env, "GOFLAGS=-mod=mod -buildvcs=false", "GONOSUMDB=*", "ONCEMILL_ADMIN__LISTEN=off"))

	blocks := walkthrough.Read(t, filepath.Join(root, "docs", "tutorial.md"), "")
	addresses := strings.NewReplacer(
		"amqp://guest:guest@127.0.0.1:16672/", rabbit.URL,
		"postgres://oncemill@127.0.0.1:15432/oncemill?sslmode=disable", postgres.DSN,
		"../oncemill/docker/services up rabbitmq postgres", ":", // they run
	)
	sh.Follow(blocks, func(command string) string {
		if command == "go mod tidy" {
			require.NoError(t, os.WriteFile(filepath.Join(dir, "shop", "go.sum"), sums, 0o600))
		}
		return addresses.Replace(command)
	})

	var written strings.Builder
	for _, name := range []string{"main.go", "orders/orders.go", "orders/orders_test.go"} {
		text, err := os.ReadFile(filepath.Join(dir, "shop", name))
		require.NoError(t, err)
		written.Write(text)
	}
	for _, b := range blocks {
		if b.Language == "go" {
			require.Contains(t, written.String(), b.Text)
		}
	}
}
