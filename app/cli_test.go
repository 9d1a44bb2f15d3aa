package app

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

func TestExitCodesOfTheCommandLine(t *testing.T) {
	t.Parallel()
	c := newConsole(t, Builtin())
	for args, says := range map[string]string{
		"kyes":                         `did you mean`,
		"keys lsit":                    `did you mean "list"?`,
		"keys lsit --state completed":  `did you mean "list"?`,
		"dlq redirve 17":               `did you mean "redrive"?`,
		"run --borker kafka":           "unknown flag: --borker",
		"run now":                      "unknown command",
		"run --broker kafak":           `did you mean "kafka"?`,
		"run --only paymets":           "--only",
		"keys show":                    "accepts 1 arg(s)",
		"keys resolve k --as done":     `"scope" not set`,
		"dlq show seventeen":           "is no id",
		"publish payments.requested":   "--data or --file",
		"publish t --data {} -H x":     "name=value",
		"publish bad..topic --data {}": "empty part",
		"run --set relay":              "is not path=value",
		"run --set relay.btach=1":      `did you mean "--relay.batch"?`,
		"run --config nowhere.yaml":    "does not exist",
	} {
		text := c.fails(ExitUsage, strings.Fields(args)...)
		require.Contains(t, strings.ToLower(text), strings.ToLower(says), args)
		require.True(t, strings.HasPrefix(text, "oncemill: "), text)
	}
	require.NoDirExists(t, filepath.Join(c.dir, "nats"), "nothing was begun")

	require.Contains(t, c.fails(ExitFailed, "keys", "list"), `run "oncemill migrate up" first`)
	require.Contains(t, c.ok("version"), "go1")
	require.Contains(t, c.ok("keys"), "Available Commands")
}

func TestMigrateUpAndStatus(t *testing.T) {
	t.Parallel()
	c := newConsole(t, Builtin())
	missing := decode[[]string](c, "migrate", "status")
	require.GreaterOrEqual(t, len(missing), 5, "the store's and those of four plugins")
	require.Contains(t, c.ok("migrate", "status"), "migrations are missing")
	verify := c.with("MIGRATE=verify")
	require.Contains(t, verify.fails(ExitFailed, "run"), "migrate up")

	require.Contains(t, c.ok("migrate", "up"), "up to date")
	require.Equal(t, "[]\n", c.ok("migrate", "status", "--json"))
	require.Contains(t, c.ok("migrate", "up"), "up to date")
	require.Empty(t, decode[[]keyView](c, "keys", "list"))
	run := verify.start()
	code, _ := run.end()
	require.Equal(t, ExitOK, code)
}

func TestEveryCommandHasHelpAndExamples(t *testing.T) {
	t.Parallel()
	c := &cli{set: Set{Service: "shop", Brokers: Builtin().Brokers, Stores: Builtin().Stores}, flags: map[string]string{}}
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			require.NotEmpty(t, sub.Short, sub.CommandPath())
			if !sub.HasSubCommands() && !sub.Hidden {
				require.Contains(t, sub.Example, sub.CommandPath(), "an example under the application's own name")
				require.NotContains(t, sub.Example, "oncemill ", sub.CommandPath())
			}
			walk(sub)
		}
	}
	walk(c.root())

	help := newConsole(t, Builtin()).ok("dlq", "redrive", "--help")
	require.Contains(t, help, "Examples:\n  oncemill dlq redrive 17")
}

func TestShellCompletion(t *testing.T) {
	t.Parallel()
	c := newConsole(t, Builtin())
	require.Contains(t, c.ok("__complete", "k"), "keys\t")
	require.Contains(t, c.ok("__complete", "run", "--broker", ""), "rabbitmq\n")
	require.Contains(t, c.ok("__complete", "keys", "list", "--state", ""), "in_doubt\n")
	require.Contains(t, c.ok("__complete", "keys", "resolve", "k", "--as", ""), "retry\n")
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		require.Contains(t, c.ok("completion", shell), "oncemill")
	}
}

func TestPublishReadsItsBodyFromAFileOrStandardInput(t *testing.T) {
	t.Parallel()
	l := &tally{}
	c := newConsole(t, l.set())
	c.start()
	file := filepath.Join(t.TempDir(), "body.json")
	require.NoError(t, os.WriteFile(file, []byte(`{"from":"file"}`), 0o600))
	c.ok("publish", tallyTopic, "--key", "file", "--file", file)
	c.waitKey(tallyScope, "file", "completed")

	var out, errs buffer
	one := &cli{set: c.set, in: strings.NewReader(`{"from":"stdin"}`), out: &out, errs: &errs, env: c.env}
	require.Equal(t, ExitOK, one.main(context.Background(), []string{"publish", tallyTopic, "--key", "stdin", "--data", "-"}), errs.String())
	c.waitKey(tallyScope, "stdin", "completed")

	text := c.ok("publish", tallyTopic, "--data", "{}")
	require.Regexp(t, `^published [0-9a-f-]{36} with key [0-9a-f-]{36}\n$`, text)
	a := c.do("publish", "tally.ad", "--key", "k", "--data", "{}")
	require.Equal(t, ExitOK, a.code)
	require.Contains(t, a.errs, "no binding of this configuration consumes or publishes tally.ad")
	require.Contains(t, c.fails(ExitUsage, "publish", tallyTopic, "--data", "{}", "--header", "oncemill-x=1"), "reserved")
	c.fails(ExitUsage, "publish", tallyTopic, "--data", "{}", "--file", file)
}
