package sqlitestore_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/store"
	"github.com/oncemill/oncemill/adapters/store/sqlitestore"
	"github.com/oncemill/oncemill/middleware/keystore"
)

// order is what another process, which is this test binary started again, is told to do.
type order struct {
	Role string
	Path string
	From int // the first of its keys
	Keys int
}

const orderVariable = "ONCEMILL_TEST_SQLITE_ORDER"

func TestMain(m *testing.M) {
	text := os.Getenv(orderVariable)
	if text == "" {
		os.Exit(m.Run())
	}
	var o order
	err := json.Unmarshal([]byte(text), &o)
	if err == nil {
		err = o.obey(context.Background())
	}
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
}

func (o order) obey(ctx context.Context) error {
	s, err := sqlitestore.Open(ctx, sqlitestore.Config{Path: o.Path}, store.Options{})
	if err != nil {
		return err
	}
	switch o.Role {
	case "work":
		report := work(ctx, s, o.From, o.Keys)
		if err := json.NewEncoder(os.Stdout).Encode(report); err != nil {
			return err
		}
	case "hold":
		tx, err := s.Keys().Begin(ctx, keystore.TxOptions{})
		if err != nil {
			return err
		}
		if _, err := tx.Claim(ctx, []keystore.Claim{{ID: keystore.ID{Scope: "s", Key: "held"}}}); err != nil {
			return err
		}
		fmt.Println("holding")
		select {}
	case "migrate":
		fmt.Println("migrating")
		return s.Migrate(ctx, []store.MigrationSet{slowSet()})
	}
	return s.Close()
}

// slowSet takes a good while in SQLite itself.
func slowSet() store.MigrationSet {
	return store.MigrationSet{Name: "slow", Files: fstest.MapFS{"sqlite/00001_slow.sql": {Data: []byte(`-- +goose Up
CREATE TABLE slow (n INTEGER);
INSERT INTO slow WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 10000) SELECT max(n) FROM c;
`)}}}
}

// child is another process.
type child struct {
	cmd *exec.Cmd
	out *bufio.Reader
}

func start(t *testing.T, o order) *child {
	t.Helper()
	text, err := json.Marshal(o)
	require.NoError(t, err)
	exe, err := os.Executable()
	require.NoError(t, err)
	c := &child{cmd: exec.Command(exe)}
	c.cmd.Env = append(os.Environ(), orderVariable+"="+string(text))
	c.cmd.Stderr = os.Stderr
	pipe, err := c.cmd.StdoutPipe()
	require.NoError(t, err)
	c.out = bufio.NewReader(pipe)
	require.NoError(t, c.cmd.Start())
	t.Cleanup(c.kill)
	return c
}

func (c *child) line(t *testing.T) string {
	t.Helper()
	line, err := c.out.ReadString('\n')
	require.NoError(t, err)
	return line
}

func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
}

// report is what a worker saw.
type report struct {
	Fresh, Duplicates int
	Worst             time.Duration // the longest wait for a transaction to begin
	Errors            []string
}
