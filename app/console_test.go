package app

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/internal/testenv"
)

// console is a command line in a folder of its own, with the embedded broker and SQLite unless the environment says otherwise.
type console struct {
	t        *testing.T
	set      Set
	dir      string
	env      []string
	patience time.Duration
}

// newConsole makes a console of the built-in plugins and those given; env is more of its environment, as NAME=value without the prefix.
func newConsole(t *testing.T, set Set, env ...string) *console {
	t.Helper()
	dir := t.TempDir()
	c := &console{t: t, set: set, dir: dir, env: []string{
		"ONCEMILL_DATA_DIR=" + dir, "ONCEMILL_ADMIN__LISTEN=127.0.0.1:0", "ONCEMILL_SHUTDOWN_TIMEOUT=10s",
	}}
	for _, p := range set.Plugins {
		if p.Name == "email" {
			c.env = append(c.env, "ONCEMILL_PLUGINS__EMAIL__CONFIG__FOLDER="+filepath.Join(dir, "mail"))
		}
	}
	return c.with(env...)
}

// with returns a console of the same folder with more environment.
func (c *console) with(env ...string) *console {
	more := *c
	more.env = append([]string{}, c.env...)
	for _, pair := range env {
		more.env = append(more.env, "ONCEMILL_"+pair)
	}
	return &more
}

// buffer is written by several goroutines.
type buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// answer is what a command left behind.
type answer struct {
	code      int
	out, errs string
}

// do runs one command to its end.
func (c *console) do(args ...string) answer {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	return c.doIn(ctx, args...)
}

func (c *console) doIn(ctx context.Context, args ...string) answer {
	var out, errs buffer
	one := &cli{set: c.set, in: strings.NewReader(""), out: &out, errs: &errs, env: c.env, patience: c.patience}
	code := one.main(ctx, args)
	return answer{code, out.String(), errs.String()}
}

// ok runs a command that must succeed, and returns what it printed.
func (c *console) ok(args ...string) string {
	c.t.Helper()
	a := c.do(args...)
	require.Equal(c.t, ExitOK, a.code, "%s: %s", strings.Join(args, " "), a.errs)
	return a.out
}

// fails runs a command that must end with the exit code, and returns what it said.
func (c *console) fails(code int, args ...string) string {
	c.t.Helper()
	a := c.do(args...)
	require.Equal(c.t, code, a.code, "%s: %s%s", strings.Join(args, " "), a.out, a.errs)
	require.NotEmpty(c.t, a.errs)
	return a.errs
}

// decode runs a command with --json and returns what it printed, decoded.
func decode[T any](c *console, args ...string) T {
	c.t.Helper()
	var v T
	require.NoError(c.t, json.Unmarshal([]byte(c.ok(append(args, "--json")...)), &v))
	return v
}

// service is a "run" that goes on.
type service struct {
	t     *testing.T
	errs  *buffer
	stop  context.CancelFunc
	force chan struct{}
	ended chan struct{}
	code  int
}

// launch starts "run" and returns at once. The test's end stops it.
func (c *console) launch(args ...string) *service {
	c.t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	s := &service{t: c.t, errs: &buffer{}, stop: stop, force: make(chan struct{}), ended: make(chan struct{})}
	one := &cli{set: c.set, in: strings.NewReader(""), out: io.Discard, errs: s.errs, env: c.env, force: s.force}
	go func() {
		defer close(s.ended)
		s.code = one.main(ctx, append([]string{"run"}, args...))
	}()
	c.t.Cleanup(func() {
		stop()
		<-s.ended
		if c.t.Failed() {
			c.t.Logf("log of run:\n%s", s.errs)
		}
	})
	return s
}

// start starts "run" and waits until it is ready.
func (c *console) start(args ...string) *service {
	c.t.Helper()
	s := c.launch(args...)
	s.until(http.StatusOK)
	return s
}

// until waits until /readyz answers with the status.
func (s *service) until(status int) {
	s.t.Helper()
	testenv.Eventually(s.t, 30*time.Second, func() error {
		select {
		case <-s.ended:
			return fmt.Errorf("run ended with exit code %d: %s", s.code, s.errs)
		default:
		}
		got, text, err := s.get("/readyz")
		if err == nil && got != status {
			err = fmt.Errorf("/readyz answers %d: %s", got, text)
		}
		return err
	})
}

var listens = regexp.MustCompile(`msg="admin server listens" address=(\S+)`)

// get asks the admin server.
func (s *service) get(path string) (status int, body string, err error) {
	m := listens.FindStringSubmatch(s.errs.String())
	if m == nil {
		return 0, "", errors.New("the admin server does not listen yet")
	}
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Get("http://" + m[1] + path)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return res.StatusCode, string(text), err
}

// end stops run as a first signal does, and returns its exit code and how long that took.
func (s *service) end() (code int, took time.Duration) {
	s.t.Helper()
	began := time.Now()
	s.stop()
	select {
	case <-s.ended:
	case <-time.After(60 * time.Second):
		s.t.Fatalf("run did not end: %s", s.errs)
	}
	return s.code, time.Since(began)
}

// publish publishes a message of the command line.
func (c *console) publish(topic, key, data string) {
	c.t.Helper()
	c.ok("publish", topic, "--key", key, "--data", data)
}

// waitKey waits until the key has the state in the scope.
func (c *console) waitKey(scope, key, state string) storyView {
	c.t.Helper()
	var found storyView
	testenv.Eventually(c.t, 20*time.Second, func() error {
		a := c.do("keys", "show", key, "--json")
		if a.code != ExitOK {
			return errors.New(a.errs)
		}
		var stories []storyView
		if err := json.Unmarshal([]byte(a.out), &stories); err != nil {
			return err
		}
		for _, s := range stories {
			if s.Scope == scope && s.State == state {
				found = s
				return nil
			}
		}
		return fmt.Errorf("key %q is not %s in %s: %s", key, state, scope, a.out)
	})
	return found
}

// waitDead waits until a scope has dead letters of a key and a reason, and returns the first.
func (c *console) waitDead(key, reason string) rowView {
	c.t.Helper()
	var found rowView
	testenv.Eventually(c.t, 20*time.Second, func() error {
		a := c.do("dlq", "list", "--reason", reason, "--json")
		var rows []rowView
		if err := json.Unmarshal([]byte(a.out), &rows); err != nil {
			return fmt.Errorf("%w: %s", err, a.errs)
		}
		for _, row := range rows {
			if row.Key == key {
				found = row
				return nil
			}
		}
		return fmt.Errorf("no dead letter of %q: %s", key, a.out)
	})
	return found
}

// counts returns nil when the series of a metric whose labels contain the text has at least the value.
func (s *service) counts(metric, labels string, least float64) error {
	_, page, err := s.get("/metrics")
	if err != nil {
		return err
	}
	for _, line := range strings.Split(page, "\n") {
		name, value, _ := strings.Cut(line, "} ")
		if !strings.HasPrefix(name, metric+"{") || !strings.Contains(name, labels) {
			continue
		}
		if n, err := strconv.ParseFloat(value, 64); err == nil && n >= least {
			return nil
		}
	}
	return fmt.Errorf("no series %s{%s} of %v or more", metric, labels, least)
}

// gone waits until no scope knows the key.
func (c *console) gone(key string) {
	c.t.Helper()
	testenv.Eventually(c.t, 20*time.Second, func() error {
		if a := c.do("keys", "show", key); a.code != ExitMissing {
			return fmt.Errorf("%q is still there: %s%s", key, a.out, a.errs)
		}
		return nil
	})
}

func itoa(id int64) string { return strconv.FormatInt(id, 10) }
