package app

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// F082: whatever is misspelt or makes no sense is refused by check and by run alike, with its name, its line and
// a suggestion, and nothing is consumed.
func TestF082TyposAreRefused(t *testing.T) {
	t.Parallel()
	for _, one := range []struct {
		name, file string
		env        []string
		says       []string
	}{
		{name: "retention", file: "bindings:\n  payments:\n    retension: 24h\n", says: []string{":3:", "bindings.payments.retension", `"retention"`}},
		{name: "retries", file: "bindings:\n  payments:\n    max_retrys: 3\n", says: []string{":3:", "max_retrys", `"retry"`}},
		{name: "no unit", file: "bindings:\n  payments:\n    retention: \"24\"\n", says: []string{":3:", "bindings.payments.retention", "unit"}},
		{name: "negative", file: "bindings:\n  payments:\n    concurrency: -1\n", says: []string{":3:", "bindings.payments.concurrency"}},
		{name: "twice", file: "service: a\nbroker: embedded\nservice: b\n", says: []string{":3:", "service", "twice"}},
		{name: "database", file: "database: postgress\n", says: []string{":1:", "database", `"postgres"`}},
		{name: "variable", env: []string{"DATABSE=sqlite"}, says: []string{"ONCEMILL_DATABSE", "ONCEMILL_DATABASE"}},
		{name: "variable of a section", env: []string{"BROKERS__EMBEDDED__MAX_AEG=1h"}, says: []string{"ONCEMILL_BROKERS__EMBEDDED__MAX_AEG", "MAX_AGE"}},
		{name: "binding", file: "bindings:\n  paymets: {retention: 30d}\n", says: []string{":2:", "bindings.paymets", `"payments"`}},
		{name: "plugin", file: "plugins:\n  emial: {enabled: false}\n", says: []string{":2:", "plugins.emial", `"email"`}},
		{name: "key", file: "bindings:\n  email:\n    key: metdata:id\n", says: []string{":3:", "bindings.email.key", `metadata:NAME`}},
		{name: "fingerprint", file: "bindings:\n  email:\n    fingerprint: jsn\n", says: []string{":3:", "bindings.email.fingerprint", "json"}},
		{name: "missing key", file: "bindings:\n  email:\n    missing_key: derve\n", says: []string{":3:", "bindings.email.missing_key", `"derive"`}},
		{name: "topic", file: "bindings:\n  email:\n    topic: a..b\n", says: []string{":3:", "bindings.email.topic"}},
		{name: "outcome", file: "bindings:\n  payments:\n    unknown_outcome: retry\n", says: []string{":3:", "bindings.payments.unknown_outcome", "external"}},
		{name: "keys elsewhere", file: "keys: memcached\n", says: []string{":1:", "keys", "database"}},
		{name: "keys of one elsewhere", file: "bindings:\n  email:\n    keys: memcached\n", says: []string{":3:", "bindings.email.keys", "database"}},
		{name: "section of keys elsewhere", file: "keys: dynamodb\ndatabases:\n  dynamodb:\n    tabel: x\n", says: []string{":4:", "databases.dynamodb.tabel", `"table"`}},
		{name: "value of keys elsewhere", file: "keys: dynamodb\ndatabases:\n  dynamodb:\n    table: a/b\n", says: []string{"databases.dynamodb", "table"}},
		{name: "settings of a binding", file: "bindings:\n  email:\n    config:\n      folder: x\n", says: []string{"bindings.email.config", "plugins.email.config"}},
		{name: "settings of a plugin", file: "plugins:\n  email:\n    config:\n      fodler: x\n", says: []string{":4:", "plugins.email.config.fodler", `"folder"`}},
		{name: "value of a plugin", file: "plugins:\n  email:\n    config:\n      transport: pigeon\n", says: []string{"plugins.email.config", "folder or smtp"}},
		{name: "section of the broker", file: "brokers:\n  embedded:\n    prot: 4222\n", says: []string{":3:", "brokers.embedded.prot", `"port"`}},
		{name: "value of the broker", file: "brokers:\n  embedded:\n    port: 123456\n", says: []string{"brokers.embedded", "port"}},
		{name: "section of the database", file: "databases:\n  sqlite:\n    pth: x\n", says: []string{":3:", "databases.sqlite.pth", `"path"`}},
		{name: "shared scope", file: "bindings:\n  counters:\n    scope: oncemill/journal\n", says: []string{"counters", "journal", "oncemill.journal"}},
		{name: "shared queue", file: "bindings:\n  counters:\n    scope: oncemill.journal\n", says: []string{"counters", "journal", "oncemill.journal"}},
		{name: "nothing left", file: "plugins:\n  email: {enabled: false}\n  payments: {enabled: false}\n  counters: {enabled: false}\n  journal: {enabled: false}\n", says: []string{"no binding is enabled"}},
		{name: "retries outlast the key", file: "bindings:\n  payments:\n    retention: 1m\n", says: []string{":3:", "bindings.payments.retention", "retries"}},
	} {
		t.Run(one.name, func(t *testing.T) {
			t.Parallel()
			c := newConsole(t, Builtin(), one.env...)
			file := filepath.Join(t.TempDir(), "oncemill.yaml")
			require.NoError(t, os.WriteFile(file, []byte(one.file), 0o600))
			checked := c.fails(ExitUsage, "config", "check", "--config", file)
			for _, text := range one.says {
				require.Contains(t, checked, text)
			}
			require.Equal(t, checked, c.fails(ExitUsage, "run", "--config", file), "run says the same")
			require.NoDirExists(t, filepath.Join(c.dir, "nats"), "nothing was connected")
			require.NoFileExists(t, filepath.Join(c.dir, "oncemill.db"))
		})
	}
}

func TestGoodConfigurationIsCheckedAndPrinted(t *testing.T) {
	t.Parallel()
	c := newConsole(t, Builtin(), "BINDINGS__PAYMENTS__RETENTION=60d")
	require.Contains(t, c.ok("config", "check"), "good")
	text := c.ok("config", "print", "--log-level", "debug")
	require.Contains(t, text, "retention: 60d")
	require.Contains(t, text, "level: debug")
	require.NoDirExists(t, filepath.Join(c.dir, "nats"))
}

// A setting that is written is a setting that is kept: each of these shows in what the program does.
func TestSettingsOfABindingReachTheEngine(t *testing.T) {
	t.Parallel()
	c := newConsole(t, Builtin(),
		"SERVICE=shop", "MAX_PAYLOAD=2KiB", "CRASH_LIMIT=7",
		"BINDINGS__PAYMENTS__TOPIC=pay", "BINDINGS__PAYMENTS__RETENTION=60d", "BINDINGS__PAYMENTS__CONCURRENCY=3", "BINDINGS__PAYMENTS__TIMEOUT=4s",
		"BINDINGS__PAYMENTS__ISOLATION=serializable", "BINDINGS__PAYMENTS__ORDER=hold", "BINDINGS__PAYMENTS__ORDERED=true",
		"BINDINGS__PAYMENTS__RETRY__ATTEMPTS=5", "BINDINGS__PAYMENTS__RETRY__FIRST=6s", "BINDINGS__PAYMENTS__RETRY__MAX=7s", "BINDINGS__PAYMENTS__RETRY__IN_PROCESS=0s",
		"BINDINGS__PAYMENTS__MISSING_KEY=derive", "BINDINGS__JOURNAL__SCOPE=old/journal", "BINDINGS__EMAIL__UNKNOWN_OUTCOME=park",
	)
	a := c.app()
	byName := map[string]binding{}
	for _, b := range a.bindings {
		byName[b.name] = b
	}
	require.NoError(t, a.Close())
	e := byName["payments"].engine
	require.Equal(t, "shop/payments", e.Scope)
	require.Equal(t, "pay", e.Topic)
	require.Equal(t, 60*24*time.Hour, e.Retention)
	require.Equal(t, 3, e.Concurrency)
	require.Equal(t, 4*time.Second, e.Timeout)
	require.Equal(t, "serializable", e.Isolation)
	require.True(t, e.Hold)
	require.True(t, byName["payments"].order)
	require.True(t, byName["payments"].subscription().Ordered)
	require.Equal(t, 5, e.Retry.Attempts)
	require.Equal(t, 6*time.Second, e.Retry.First)
	require.Equal(t, 7*time.Second, e.Retry.Max)
	require.Negative(t, e.Retry.InProcess)
	require.Equal(t, 7, e.CrashLimit)
	require.Equal(t, 2048, e.MaxPayload)
	require.EqualValues(t, "derive", e.Missing)
	require.Equal(t, "old/journal", byName["journal"].engine.Scope)
	require.Equal(t, "old.journal", byName["journal"].group)
	require.EqualValues(t, "park", byName["email"].engine.External.Unknown)
}

// --only runs one binding; messages for the others wait in their queues for the process that runs them.
func TestOnlyRunsOneBindingAndKeepsTheOthersQueues(t *testing.T) {
	t.Parallel()
	c := newConsole(t, Builtin())
	run := c.start("--only", "counters-add")
	c.publish("journal.append", "j-1", `{"note":"later"}`)
	c.publish("counters.add", "c-1", `{"counter":"visits","delta":2}`)
	c.waitKey("oncemill/counters-add", "c-1", "completed")
	require.Contains(t, c.fails(ExitMissing, "keys", "show", "j-1"), "no scope")
	run.end()
	c.start("--only", "journal-append", "--only", "journal")
	c.waitKey("oncemill/journal-append", "j-1", "completed")
}
