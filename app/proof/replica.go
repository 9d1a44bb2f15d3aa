package proof

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/oncemill/oncemill/app/proof/history"
	"github.com/oncemill/oncemill/middleware/faultpoint"
)

// replica is one child process after the other, under one name.
type replica struct {
	t    *Trial
	name string

	mu      sync.Mutex
	cmd     *exec.Cmd
	orders  *json.Encoder
	stdin   io.WriteCloser
	ready   bool
	ending  string // why the process is ending, where somebody ends it
	gone    chan struct{}
	retired bool // no process follows
}

// launch starts a process; when it ends another follows, unless the replica is retired.
func (r *replica) launch() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.retired {
		return nil
	}
	cmd, err := r.t.cfg.Command()
	if err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(r.t.cfg.Dir, r.name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open the log of a replica: %w", err)
	}
	defer log.Close()
	cmd.Stderr = log
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start a replica: %w", err)
	}
	start := r.t.cfg.Start
	start.Replica = r.name
	r.cmd, r.stdin, r.orders, r.ready, r.ending, r.gone = cmd, stdin, json.NewEncoder(stdin), false, "", make(chan struct{})
	gone := r.gone
	r.tell(Order{Start: &start})
	r.tell(Order{Arm: r.t.outstanding()})
	r.t.process(r.name, "started", "")
	r.t.going.Go(func() { r.follow(cmd, stdout, gone) })
	return nil
}

// tell sends an order; the caller holds mu. A process that is gone is noticed elsewhere.
func (r *replica) tell(o Order) {
	if r.orders != nil {
		_ = r.orders.Encode(o)
	}
}

func (r *replica) order(o Order) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tell(o)
}

// follow takes reports until the process ends, and starts the next one.
func (r *replica) follow(cmd *exec.Cmd, stdout io.Reader, gone chan struct{}) {
	fell := ""
	dec := json.NewDecoder(stdout)
	for {
		var report Report
		if dec.Decode(&report) != nil {
			break
		}
		if report.Fired != 0 && ends(*report.Event) {
			fell = report.Event.What + " at " + report.Event.Point
		}
		r.heard(report)
	}
	err := cmd.Wait()
	r.mu.Lock()
	ending := r.ending
	r.cmd, r.orders, r.ready = nil, nil, false
	r.mu.Unlock()
	switch {
	case ending == "killed":
		r.t.process(r.name, "killed", "from outside")
	case fell != "":
		r.t.process(r.name, "fell", fell)
	case ending == "stopped": // with an error where what it needed for a clean end was away
		r.t.process(r.name, "stopped", text(err))
	default:
		if err == nil {
			err = errors.New("exit status 0")
		}
		r.t.process(r.name, "died", fmt.Sprintf("%v; see %s.log", err, filepath.Join(r.t.cfg.Dir, r.name)))
	}
	close(gone)
	if err := r.launch(); err != nil {
		r.t.process(r.name, "died", err.Error())
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// ends reports whether a fault may end the process. A cut ends the relay where there is no connection to cut, and its error the process.
func ends(e history.Event) bool {
	at := faultpoint.Point(e.Point)
	inHandler := at == faultpoint.BeforeStatement || at == faultpoint.AfterStatement || at == faultpoint.Answering
	switch Fault(e.What) {
	case FaultKill:
		return true
	case FaultPanic:
		return !inHandler
	case FaultError, FaultCut:
		return slices.Contains(faultpoint.Relay(), at)
	}
	return false
}

func (r *replica) heard(report Report) {
	if report.Event != nil {
		report.Event.Replica = r.name
		r.t.rec.Add(*report.Event)
		switch report.Event.Kind {
		case history.Delivered:
			r.t.received(*report.Event)
		case history.Emitted:
			r.t.note(r.t.posted, report.Event.Topic, report.Event.Key)
		}
		if report.Fired != 0 {
			r.t.fired(report.Fired, r)
		}
	}
	if report.Rival != nil {
		r.t.going.Go(func() { r.t.rival(r, *report.Rival) })
	}
	if report.Ready {
		r.t.process(r.name, "ready", "")
		r.mu.Lock()
		r.ready = true
		r.mu.Unlock()
	}
}

func (r *replica) isReady() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ready
}

// kill ends the process from outside; another follows.
func (r *replica) kill() { r.end("killed", func(cmd *exec.Cmd) { _ = cmd.Process.Kill() }) }

// stop ends the process gracefully; another follows.
func (r *replica) stop() { r.end("stopped", func(*exec.Cmd) { r.tell(Order{Stop: true}) }) }

func (r *replica) end(how string, end func(*exec.Cmd)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cmd == nil || r.ending != "" {
		return
	}
	r.ending = how
	end(r.cmd)
}

// retire ends the replica for good: gracefully, or at once where that takes longer than patience.
func (r *replica) retire(patience time.Duration) {
	r.mu.Lock()
	r.retired = true
	gone := r.gone
	r.mu.Unlock()
	if gone == nil {
		return
	}
	r.stop()
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case <-gone:
	case <-t.C:
		r.mu.Lock()
		if r.cmd != nil {
			_ = r.cmd.Process.Kill()
		}
		r.mu.Unlock()
		<-gone
	}
}
