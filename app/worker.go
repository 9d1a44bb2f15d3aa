package app

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// worker is a consumer process of the demo: this very program with the command run.
type worker struct {
	env   []string
	log   string
	admin string     // address of its metrics
	died  chan error // gets the error of a process that ended without being killed

	cmd    *exec.Cmd
	killed chan struct{}
	gone   chan struct{}
}

func newWorker(dir, admin string, env []string) *worker {
	env = append(append(os.Environ(), env...), "ONCEMILL_ADMIN__LISTEN="+admin)
	return &worker{env: env, admin: admin, log: filepath.Join(dir, "consumer.log"), died: make(chan error, 1)}
}

// start starts the process; it consumes as soon as it is ready.
func (w *worker) start() error {
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	log, err := os.OpenFile(w.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(program, "run")
	cmd.Env, cmd.Stdout, cmd.Stderr = w.env, log, log
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the consumer: %w", err)
	}
	w.cmd, w.killed, w.gone = cmd, make(chan struct{}), make(chan struct{})
	go w.await(cmd, w.killed, w.gone)
	return nil
}

// await reports a process that ends without being told to.
func (w *worker) await(cmd *exec.Cmd, killed, gone chan struct{}) {
	defer close(gone)
	err := cmd.Wait()
	select {
	case <-killed:
	default:
		if err == nil {
			err = errors.New("exit status 0")
		}
		w.died <- err
	}
}

// kill sends SIGKILL and waits until the process is gone. Safe to call when none runs.
func (w *worker) kill() {
	if w.cmd == nil {
		return
	}
	close(w.killed)
	w.cmd.Process.Kill()
	<-w.gone
	w.cmd = nil
}

// deliveries asks the process how many messages of a scope it has received so far; 0 when it does not answer.
func (w *worker) deliveries(scope string) float64 {
	client := http.Client{Timeout: time.Second}
	res, err := client.Get("http://" + w.admin + "/metrics")
	if err != nil {
		return 0
	}
	defer res.Body.Close()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(res.Body)
	if err != nil {
		return 0
	}
	for _, m := range families["oncemill_messages_total"].GetMetric() {
		labels := map[string]string{}
		for _, l := range m.GetLabel() {
			labels[l.GetName()] = l.GetValue()
		}
		if labels["scope"] == scope && labels["kind"] == "received" {
			return m.GetCounter().GetValue()
		}
	}
	return 0
}
