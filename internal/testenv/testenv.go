// Package testenv gives tests real servers, found by one environment variable
// for each. It is for tests only.
//
//	eval "$(docker/services env)"   # after docker/services up
//	go test ./...
//
// A test whose server is missing is skipped. ONCEMILL_TEST_MUST_RUN, a list
// like "postgres,rabbitmq,kafka,nats", makes it fail instead.
package testenv

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// variables are the environment variables of a service; the first one is its address.
var variables = map[string][]string{
	"postgres":  {"ONCEMILL_TEST_POSTGRES"},
	"pgbouncer": {"ONCEMILL_TEST_PGBOUNCER"},
	"mariadb":   {"ONCEMILL_TEST_MYSQL"},
	"rabbitmq":  {"ONCEMILL_TEST_RABBITMQ", "ONCEMILL_TEST_RABBITMQ_API"},
	"kafka":     {"ONCEMILL_TEST_KAFKA"},
	"nats":      {"ONCEMILL_TEST_NATS"},
	"redis":     {"ONCEMILL_TEST_REDIS"},
	"smtp":      {"ONCEMILL_TEST_SMTP", "ONCEMILL_TEST_SMTP_API"},
	"moto":      {"ONCEMILL_TEST_AWS", "ONCEMILL_TEST_BOTO3"},
}

// Kafka returns the addresses of the brokers, or skips the test.
// Topics are not created by use: the test creates them, named by [Name].
func Kafka(t testing.TB) []string {
	t.Helper()
	return strings.Split(lookup(t, "kafka")[0], ",")
}

// NATS returns the URL of the server, or skips the test. JetStream is on.
func NATS(t testing.TB) string {
	t.Helper()
	return lookup(t, "nats")[0]
}

// Python returns the path of an interpreter that has pika, confluent-kafka and boto3, or skips the test. It comes with moto.
func Python(t testing.TB) string {
	t.Helper()
	return lookup(t, "moto")[1]
}

// Eventually calls check until it returns nil, and fails the test with its last
// error when the time is over. It does not interrupt a check that blocks.
func Eventually(t testing.TB, within time.Duration, check func() error) {
	t.Helper()
	const slowest = 100 * time.Millisecond
	deadline := time.Now().Add(within)
	for pause := time.Millisecond; ; pause = min(2*pause, slowest) {
		err := check()
		if err == nil {
			return
		}
		left := time.Until(deadline)
		if left <= 0 {
			t.Fatalf("not within %v: %v", within, err)
		}
		time.Sleep(min(pause, left))
	}
}

// lookup returns the values of a service's variables. If one is missing it
// skips the test, or fails it where the service must run.
func lookup(t testing.TB, service string) []string {
	t.Helper()
	names, known := variables[service]
	if !known {
		t.Fatalf("testenv: no service is called %q", service)
	}
	values := make([]string, len(names))
	for i, name := range names {
		if values[i] = os.Getenv(name); values[i] != "" {
			continue
		}
		const format = `%s is not set; run: docker/services up %s; eval "$(docker/services env)"`
		if mustRun(service) {
			t.Fatalf("ONCEMILL_TEST_MUST_RUN names "+service+", but "+format, name, service)
		}
		t.Skipf(format, name, service)
	}
	return values
}

func mustRun(service string) bool {
	list := strings.Split(os.Getenv("ONCEMILL_TEST_MUST_RUN"), ",")
	return slices.ContainsFunc(list, func(s string) bool { return strings.TrimSpace(s) == service })
}

// script finds docker/services beside the go.mod above the working directory,
// which for a test is the folder of its package.
var script = sync.OnceValues(func() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			path := filepath.Join(dir, "docker", "services")
			_, err := os.Stat(path)
			return path, err
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", os.ErrNotExist
		}
		dir = parent
	}
})

// Program returns the path of a client that comes with a service's server. Where it is not installed it skips the test, or fails it where the service must run.
func Program(t testing.TB, service, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	switch {
	case err == nil:
	case mustRun(service):
		t.Fatalf("ONCEMILL_TEST_MUST_RUN names %s, but its client is missing: %v", service, err)
	default:
		t.Skip(err)
	}
	return path
}
