package proof

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/oncemill/oncemill/app/proof/history"
)

// Recorder keeps a history, and writes it to a file. It is safe for concurrent use.
type Recorder struct {
	mu     sync.Mutex
	events []history.Event
	last   time.Time // of the last event that a replica reported
	tally  map[string]int
	file   *os.File
	buffer *bufio.Writer
	err    error
}

// NewRecorder writes to the file path.
func NewRecorder(path string) (*Recorder, error) {
	r := &Recorder{tally: map[string]int{}}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("make the file of the history: %w", err)
	}
	r.file, r.buffer = file, bufio.NewWriter(file)
	return r, nil
}

// Add appends an event.
func (r *Recorder) Add(e history.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
	r.tally[string(e.Kind)]++
	if e.What != "" {
		r.tally[string(e.Kind)+" "+e.What]++
	}
	if e.Replica != "" {
		r.last = time.Now()
	}
	if r.buffer != nil && r.err == nil {
		r.err = json.NewEncoder(r.buffer).Encode(e)
	}
}

// Count returns how many events there are of a kind, or of a kind and what with a blank between.
func (r *Recorder) Count(of string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.tally[of]
}

// silence is for how long no replica has reported anything.
func (r *Recorder) silence() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return time.Since(r.last)
}

// Events returns the history so far; it is not to be changed.
func (r *Recorder) Events() []history.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.events[:len(r.events):len(r.events)]
}

// Close ends the file. It returns the first error of writing it.
func (r *Recorder) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.file == nil {
		return nil
	}
	err := errors.Join(r.err, r.buffer.Flush(), r.file.Close())
	r.file, r.buffer = nil, nil
	return err
}

// printOf is a payload's fingerprint in a history.
func printOf(payload []byte) string {
	sum := sha256.Sum256(payload)
	return hex.EncodeToString(sum[:6])
}
