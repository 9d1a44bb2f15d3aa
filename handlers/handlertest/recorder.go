package handlertest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// recorder is the test that a trial reports to: its failures are kept, so that a schedule can be shortened before anybody is told.
// What it does not have, it takes from the test around it.
type recorder struct {
	testing.TB
	ctx context.Context
	end context.CancelFunc

	mu       sync.Mutex
	failures []string
	log      bytes.Buffer
	cleanups []func()
}

// try runs f with a recorder and returns what it says went wrong; "" is nothing.
func try(t testing.TB, f func(r *recorder)) string {
	r := &recorder{TB: t}
	r.ctx, r.end = context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer r.clean()
		defer r.recover()
		f(r)
	}()
	<-done
	if len(r.failures) == 0 {
		return ""
	}
	return strings.Join(r.failures, "\n") + "\n" + r.log.String()
}

// recover makes a failure of a panic in the test's own code, such as its invariant.
func (r *recorder) recover() {
	if p := recover(); p != nil {
		r.fail(fmt.Sprintf("panic: %v", p))
	}
}

func (r *recorder) clean() {
	r.end()
	for len(r.cleanups) > 0 {
		last := len(r.cleanups) - 1
		f := r.cleanups[last]
		r.cleanups = r.cleanups[:last]
		f()
	}
}

func (r *recorder) fail(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, strings.TrimSuffix(text, "\n"))
}

func (r *recorder) Cleanup(f func())                  { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Context() context.Context          { return r.ctx }
func (r *recorder) Error(args ...any)                 { r.fail(fmt.Sprintln(args...)) }
func (r *recorder) Errorf(format string, args ...any) { r.fail(fmt.Sprintf(format, args...)) }
func (r *recorder) Fail()                             { r.fail("failed") }
func (r *recorder) Fatal(args ...any)                 { r.Error(args...); runtime.Goexit() }
func (r *recorder) Fatalf(format string, args ...any) { r.Errorf(format, args...); runtime.Goexit() }
func (r *recorder) Log(args ...any)                   { fmt.Fprintln(r.Output(), args...) }
func (r *recorder) Logf(format string, args ...any)   { fmt.Fprintf(r.Output(), format+"\n", args...) }
func (r *recorder) Output() io.Writer                 { return (*recorderLog)(r) }

// Failed reports whether the trial has failed.
func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.failures) > 0
}

// FailNow comes after Errorf in most assertions.
func (r *recorder) FailNow() {
	if !r.Failed() {
		r.Fail()
	}
	runtime.Goexit()
}

// TempDir is removed when the trial ends: there are many trials in a test.
func (r *recorder) TempDir() string {
	dir, err := os.MkdirTemp("", "handlertest-")
	if err != nil {
		r.Fatalf("handlertest: %v", err)
	}
	r.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// recorderLog is the recorder as the writer of logs.
type recorderLog recorder

func (l *recorderLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.log.Write(p)
}
