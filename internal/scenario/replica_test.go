package scenario

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/internal/testenv"
)

// replica is one process of the application, which can be killed, stopped and started again.
type replica struct {
	t       *testing.T
	system  *system
	name    string
	program string
	args    []string
	env     []string
	admin   string
	log     string
	cmd     *exec.Cmd
	ended   chan error
}

// replica makes a process of the built program; instrumented ones run the plugins of this package too.
func (s *system) replica(name string, withTally bool) *replica {
	s.t.Helper()
	r := &replica{
		t: s.t, system: s, name: name, program: binary, args: []string{"run", "--config", s.file},
		admin: testenv.FreeAddress(s.t), log: filepath.Join(s.dir, name+".log"),
	}
	r.env = append(bareEnvironment(), "ONCEMILL_ADMIN__LISTEN="+r.admin)
	if withTally {
		self, err := os.Executable()
		require.NoError(s.t, err)
		r.program, r.env = self, append(r.env, asReplica+"=1", tallyFile+"="+filepath.Join(s.dir, "tally"))
	}
	s.t.Cleanup(func() {
		r.kill()
		if s.t.Failed() {
			r.printLog()
		}
	})
	return r
}

// bareEnvironment is this process's environment without what would configure a replica.
func bareEnvironment() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "ONCEMILL_") })
}

// start starts the process and returns at once.
func (r *replica) start() {
	r.t.Helper()
	require.Nil(r.t, r.cmd, "the replica runs already")
	log, err := os.OpenFile(r.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(r.t, err)
	defer log.Close()
	cmd := exec.Command(r.program, r.args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = r.env, log, log
	cmd.Dir = r.system.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(r.t, cmd.Start())
	r.cmd, r.ended = cmd, make(chan error, 1)
	go func(ended chan<- error) { ended <- cmd.Wait() }(r.ended)
}

// ready waits until the process consumes.
func (r *replica) ready() {
	r.t.Helper()
	testenv.Eventually(r.t, 60*time.Second, func() error {
		if err := r.running(); err != nil {
			r.t.Fatal(err)
		}
		return r.readyNow()
	})
}

// running returns an error where the process has ended by itself.
func (r *replica) running() error {
	select {
	case err := <-r.ended:
		r.ended <- err
		return fmt.Errorf("replica %s ended: %v", r.name, err)
	default:
		return nil
	}
}

func (r *replica) readyNow() error {
	client := http.Client{Timeout: 3 * time.Second}
	res, err := client.Get("http://" + r.admin + "/readyz")
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("readyz says %s", res.Status)
	}
	return nil
}

// metrics returns the metrics page, or nothing while the process does not answer.
func (r *replica) metrics() string {
	client := http.Client{Timeout: 3 * time.Second}
	res, err := client.Get("http://" + r.admin + "/metrics")
	if err != nil {
		return ""
	}
	defer res.Body.Close()
	page, err := io.ReadAll(res.Body)
	if err != nil {
		return ""
	}
	return string(page)
}

// kill sends SIGKILL and waits until the process is gone.
func (r *replica) kill() {
	if r.cmd == nil {
		return
	}
	r.cmd.Process.Kill()
	<-r.ended
	r.cmd = nil
}

// stop sends SIGTERM and waits for a clean end.
func (r *replica) stop() {
	r.t.Helper()
	if r.cmd == nil {
		return
	}
	require.NoError(r.t, r.cmd.Process.Signal(syscall.SIGTERM))
	select {
	case err := <-r.ended:
		r.cmd = nil
		var status *exec.ExitError
		if errors.As(err, &status) {
			r.t.Fatalf("replica %s did not stop cleanly: %v", r.name, err)
		}
		require.NoError(r.t, err)
	case <-time.After(60 * time.Second):
		r.t.Fatalf("replica %s did not stop within a minute", r.name)
	}
}

// printLog shows the end of the process's log.
func (r *replica) printLog() {
	data, err := os.ReadFile(r.log)
	if err != nil {
		return
	}
	const most = 3 << 10
	r.t.Logf("log of replica %s:\n%s", r.name, data[max(0, len(data)-most):])
}

func split(t *testing.T, address string) (host string, port int) {
	t.Helper()
	host, text, err := net.SplitHostPort(address)
	require.NoError(t, err)
	port, err = strconv.Atoi(text)
	require.NoError(t, err)
	return host, port
}

// supervise starts the process again whenever it ends, until done reports true, and returns how often it ended.
func (r *replica) supervise(done func() bool, within time.Duration) (ends int) {
	r.t.Helper()
	deadline := time.After(within)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-r.ended:
			r.cmd = nil
			ends++
			r.start()
		case <-tick.C:
			if done() {
				return ends
			}
		case <-deadline:
			r.t.Fatalf("not done within %s; the process ended %d times", within, ends)
		}
	}
}
