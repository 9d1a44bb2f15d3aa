package config_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/config"
)

func write(t *testing.T, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "oncemill.yaml")
	require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	return file
}

func load(t *testing.T, content string, env ...string) (*config.Config, error) {
	t.Helper()
	return config.Load(config.LoadOptions{File: write(t, content), Env: env, Known: known()})
}

func TestLoadWithoutAnything(t *testing.T) {
	t.Parallel()
	c, err := config.Load(config.LoadOptions{})
	require.NoError(t, err)
	require.Equal(t, 90*24*time.Hour, c.Retention.DeadLetters.Std())
	require.True(t, c.Bindings["payments"].On(), "a binding that is not configured runs")
	require.True(t, c.Plugins["payments"].On(true))
	require.False(t, c.Plugins["payments"].On(false), "unless it has to be asked for")
	require.False(t, c.Bindings["payments"].Hold())
	require.NoError(t, c.Brokers["rabbitmq"].Decode(&adapter{}), "nor is a section missing")
	require.Empty(t, c.Where("broker"))
}

func TestLoadFiles(t *testing.T) {
	t.Parallel()
	_, err := config.Load(config.LoadOptions{File: "/nowhere/oncemill.yaml"})
	require.ErrorContains(t, err, "/nowhere/oncemill.yaml does not exist")
	_, err = config.Load(config.LoadOptions{File: t.TempDir()})
	require.Error(t, err)

	c, err := config.Load(config.LoadOptions{Env: []string{"ONCEMILL_CONFIG=" + write(t, "service: shop")}})
	require.NoError(t, err)
	require.Equal(t, "shop", c.Service)
	c, err = config.Load(config.LoadOptions{File: write(t, "service: flag"), Env: []string{"ONCEMILL_CONFIG=/nowhere"}})
	require.NoError(t, err)
	require.Equal(t, "flag", c.Service)

	for _, empty := range []string{"", "# nothing\n", "---\n", "{}"} {
		_, err := load(t, empty)
		require.NoError(t, err, "%q", empty)
	}
	_, err = load(t, "- a\n- b\n")
	require.ErrorContains(t, err, "must be names with values")
}

func TestErrorNamesEveryProblem(t *testing.T) {
	t.Parallel()
	_, err := load(t, "broker: x\nlog:\n  level: loud\n", "ONCEMILL_FEEDER__CONCURRENCY=0")
	var e *config.Error
	require.ErrorAs(t, err, &e)
	require.Len(t, e.Problems, 3)
	require.Equal(t, "broker", e.Problems[0].Path)
	require.True(t, strings.HasSuffix(e.Problems[0].Where, "oncemill.yaml:1"))
	require.True(t, strings.HasSuffix(e.Problems[1].Where, "oncemill.yaml:3"))
	require.Equal(t, "ONCEMILL_FEEDER__CONCURRENCY", e.Problems[2].Where)
}

func TestWhere(t *testing.T) {
	t.Parallel()
	c, err := load(t, "broker: kafka\nbindings:\n  payments:\n    key: nonsense\n", "ONCEMILL_LOG__LEVEL=warn")
	require.NoError(t, err)
	require.True(t, strings.HasSuffix(c.Where("broker"), "oncemill.yaml:1"))
	require.Equal(t, "ONCEMILL_LOG__LEVEL", c.Where("log.level"))
	require.Empty(t, c.Where("database"))
	err = c.Problem("bindings.payments.key", "%q is no key source", "nonsense")
	require.ErrorContains(t, err, `oncemill.yaml:4: bindings.payments.key: "nonsense" is no key source`)
	require.Empty(t, config.Defaults().Where("broker"))
}

func TestKnowBindings(t *testing.T) {
	t.Parallel()
	c, err := load(t, "bindings: {mail-order: {retry: {attempts: 2}}}", "ONCEMILL_BINDINGS__MAIL_ORDER__CONCURRENCY=3", "ONCEMILL_BINDINGS__EMAIL_PAYMENTS_COMPLETED__TIMEOUT=1s")
	require.NoError(t, err)
	require.Contains(t, c.Bindings, "email_payments_completed")
	require.NoError(t, c.KnowBindings(bindings()))
	require.Len(t, c.Bindings, 2)
	require.Equal(t, 3, c.Bindings["mail-order"].Concurrency)
	require.Equal(t, 2, c.Bindings["mail-order"].Retry.Attempts)
	require.Equal(t, config.Second, c.Bindings["email-payments.completed"].Timeout)
	require.Error(t, c.KnowBindings(nil))
	require.NoError(t, config.Defaults().KnowBindings(nil))
}

func TestNamesWithDots(t *testing.T) {
	t.Parallel()
	c, err := config.Load(config.LoadOptions{Flags: map[string]string{"bindings.mail.sent.concurrency": "2", "bindings.mail.concurrency": "3"}})
	require.NoError(t, err)
	require.NoError(t, c.KnowBindings([]string{"mail", "mail.sent"}))
	require.Equal(t, 2, c.Bindings["mail.sent"].Concurrency)
	require.Equal(t, 3, c.Bindings["mail"].Concurrency)
}

func TestRetryTotal(t *testing.T) {
	t.Parallel()
	require.Equal(t, 2555*config.Second, config.Retry{}.Total())
	require.Zero(t, config.Retry{Attempts: 1}.Total())
	require.Equal(t, 3*config.Second, config.Retry{Attempts: 4, First: config.Second, Max: config.Second}.Total())
	require.Equal(t, 1+1000000*config.Hour, 1+config.Retry{Attempts: 1000001, First: config.Hour}.Total())
}

// TestPrintCanBeLoaded holds Print to its word, for all that is no secret.
func TestPrintCanBeLoaded(t *testing.T) {
	t.Parallel()
	content := `
service: shop
broker: rabbitmq
admin: {listen: off}
max_payload: 3MB
brokers:
  rabbitmq:
    url: "amqp://a b\n\"c\"\t\u0007é💥"
    topology: verify
    hosts: ["a, b", 'true', "12", "", "~", "x: y", "# no"]
    ack_wait: 36h
    prefetch_size: 5
    topics: {"a.b": {name: null-ish, partitions: 3}, "0": {name: "null"}}
    extra: [1, 2.5, true, "1", {a: [b]}]
bindings:
  payments: {retention: 36h, enabled: false, ordered: true, isolation: read committed, retry: {in_process: 0s}}
`
	first, err := load(t, content)
	require.NoError(t, err)
	var printed, again bytes.Buffer
	require.NoError(t, first.Print(&printed))
	second, err := load(t, printed.String())
	require.NoError(t, err, printed.String())
	require.NoError(t, second.Print(&again))
	comment := func(s string) string {
		lines := strings.Split(s, "\n")
		for i, line := range lines {
			lines[i], _, _ = strings.Cut(line, "  # /")
		}
		return strings.Join(lines, "\n")
	}
	require.Equal(t, comment(printed.String()), comment(again.String()))
	var a, b adapter
	require.NoError(t, first.Brokers["rabbitmq"].Decode(&a))
	require.NoError(t, second.Brokers["rabbitmq"].Decode(&b))
	require.Equal(t, a, b)
	require.Equal(t, first.Bindings, second.Bindings)
	require.ErrorIs(t, first.Print(failing{}), errFull)
}

type failing struct{}

var errFull = errors.New("disk full")

func (failing) Write([]byte) (int, error) { return 0, errFull }

// TestF083NothingPrintsASecret prints a configuration in the ways a programmer may think of.
func TestF083NothingPrintsASecret(t *testing.T) {
	t.Parallel()
	const secret = "s3cr3t-Zq!"
	c, err := load(t, "telemetry: {otlp_authorization: "+secret+"}\nbrokers: {rabbitmq: {password: "+secret+", tls: [x]}}",
		"ONCEMILL_BROKERS__RABBITMQ__URL=amqp://a:"+secret+"@b")
	require.NoError(t, err)
	var out bytes.Buffer
	log := slog.New(slog.NewJSONHandler(&out, nil))
	log.Info("x", "config", c, "section", c.Brokers["rabbitmq"], "secret", c.Telemetry.OTLPAuthorization, "telemetry", c.Telemetry)
	slog.New(slog.NewTextHandler(&out, nil)).Info("x", "config", c, "section", c.Brokers["rabbitmq"], "secret", c.Telemetry.OTLPAuthorization)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		fmt.Fprintf(&out, verb+verb+verb, c, *c, c.Brokers)
		fmt.Fprintf(&out, verb+verb, c.Telemetry, c.Telemetry.OTLPAuthorization)
	}
	fmt.Fprint(&out, c.Brokers["rabbitmq"].Decode(&adapter{}))
	require.NoError(t, c.Print(&out))
	require.NotContains(t, out.String(), secret)
	require.NotContains(t, out.String(), fmt.Sprintf("%x", secret))
	require.Contains(t, out.String(), "redacted")
	read, err := c.Telemetry.Authorization().Read()
	require.NoError(t, err)
	require.Equal(t, secret, read)
}

func FuzzLoad(f *testing.F) {
	files, err := filepath.Glob(filepath.Join("testdata", "*.txt"))
	require.NoError(f, err)
	for _, file := range files {
		content, err := os.ReadFile(file)
		require.NoError(f, err)
		f.Add(sections(string(content))["oncemill.yaml"], "ONCEMILL_BROKERS__RABBITMQ__URL", "x")
	}
	f.Fuzz(func(t *testing.T, content, variable, value string) {
		file := filepath.Join(t.TempDir(), "c.yaml")
		require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
		c, err := config.Load(config.LoadOptions{File: file, Env: []string{variable + "=" + value}, Flags: map[string]string{variable: value}, Known: known()})
		if err != nil {
			return
		}
		_ = c.KnowBindings(bindings())
		for _, section := range c.Brokers {
			_ = section.Decode(&adapter{})
		}
		require.NoError(t, c.Print(&bytes.Buffer{}))
	})
}
