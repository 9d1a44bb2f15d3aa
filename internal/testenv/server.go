package testenv

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Server is one server that a test may stop and start.
type Server struct {
	// Address is the value of the service's environment variable: a DSN, an
	// AMQP URL, Kafka addresses, a NATS URL, or a host and port for mail.
	Address string
	// API is the root of the HTTP interface, if the service has one.
	API string
	// TLS is the host and port of the listener that speaks TLS, see [PrivateTLS].
	TLS string

	t       testing.TB
	name    string
	env     []string
	stopped bool
}

// Service returns the shared server, or skips the test. Everybody else who uses
// it feels it stop, other packages of the same go test too: prefer [Private].
// A server that is stopped at the end of the test is started again.
func Service(t testing.TB, name string) *Server {
	t.Helper()
	values := lookup(t, name)
	s := &Server{t: t, name: name, env: os.Environ()}
	s.address(values)
	t.Cleanup(func() {
		if s.stopped {
			s.Start()
		}
	})
	return s
}

// Private starts a server that this test has for itself, on free ports and with
// empty data, and removes it at the end, also when the test process is killed.
// It takes a second for postgres, nats, redis and smtp, six for rabbitmq and kafka.
// Where the shared server of that name is missing, the test is skipped. env are further variables
// for docker/services, as NAME=value.
func Private(t testing.TB, name string, env ...string) *Server {
	t.Helper()
	lookup(t, name)
	dir, err := os.MkdirTemp("", "oncemill-services-")
	if err != nil {
		t.Fatalf("testenv: %v", err)
	}
	s := &Server{t: t, name: name, env: append(privateEnv(dir), env...)}
	t.Cleanup(func() {
		s.run("down", "--purge", name)
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("testenv: %v", err)
		}
	})
	// PostgreSQL does not run as root, and its own user must get in.
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // holds test data only
		t.Fatalf("testenv: %v", err)
	}
	s.run("up", "--must", name)

	printed := s.run("env")
	var values []string
	for _, variable := range variables[name] {
		m := regexp.MustCompile(`(?m)^export ` + variable + `='(.*)'$`).FindStringSubmatch(printed)
		if m == nil {
			t.Fatalf("testenv: docker/services env does not print %s", variable)
		}
		values = append(values, m[1])
	}
	s.address(values)
	if m := regexp.MustCompile(`(?m)^export ONCEMILL_TEST_[A-Z]+_TLS='(.*)'$`).FindStringSubmatch(printed); m != nil {
		s.TLS = m[1]
	}
	return s
}

// PrivateTLS is [Private] with a further listener, at Server.TLS, that shows the server's certificate; of PostgreSQL it is the
// same one. It knows clients' certificates by their authority. Users other than those of Address, which the test makes there, need
// their password.
func PrivateTLS(t testing.TB, name string, c Certificates, env ...string) *Server {
	t.Helper()
	s := Private(t, name, append(env, "ONCEMILL_TEST_TLS_DIR="+c.Dir)...)
	if s.TLS == "" {
		t.Fatalf("testenv: docker/services cannot start %s with TLS", name)
	}
	return s
}

// Stop shuts the server down and waits until it has ended.
func (s *Server) Stop() {
	s.t.Helper()
	s.stopped = true
	s.run("stop", s.name)
}

// Crash ends the server without a clean shutdown: PostgreSQL by its immediate
// mode, the others by SIGKILL.
func (s *Server) Crash() {
	s.t.Helper()
	s.stopped = true
	s.run("stop", s.name, "--immediate")
}

// Start starts the server and waits until it answers.
func (s *Server) Start() {
	s.t.Helper()
	s.run("start", s.name)
	s.stopped = false
}

// Restart is [Server.Stop] and [Server.Start] in one.
func (s *Server) Restart() {
	s.t.Helper()
	s.run("restart", s.name)
	s.stopped = false
}

func (s *Server) address(values []string) {
	s.Address = values[0]
	if len(values) > 1 {
		s.API = values[1]
	}
}

// run calls docker/services and returns what it prints; a failure fails the test.
func (s *Server) run(arguments ...string) string {
	s.t.Helper()
	path, err := script()
	if err != nil {
		s.t.Fatalf("testenv: cannot find docker/services: %v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, arguments...)
	cmd.Env, cmd.WaitDelay = s.env, 10*time.Second
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		s.t.Fatalf("testenv: docker/services %s: %v\n%s%s", strings.Join(arguments, " "), err, stdout.String(), stderr.String())
	}
	return stdout.String()
}

// privateEnv keeps the downloads shared, and takes folder, ports and life span for itself.
func privateEnv(dir string) []string {
	var env []string
	fixedPort := regexp.MustCompile(`^ONCEMILL_[A-Z_]+_PORT=`)
	for _, entry := range os.Environ() {
		if !fixedPort.MatchString(entry) {
			env = append(env, entry)
		}
	}
	return append(env,
		"ONCEMILL_TEST_SERVICES_DIR="+filepath.Clean(dir),
		"ONCEMILL_TEST_SERVICES_OWNER="+strconv.Itoa(os.Getpid()),
		"ONCEMILL_TEST_PORTS=free")
}
