package kafkabroker

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

// Causes of a message context's end; handlers see them by context.Cause.
var (
	errSettled = errors.New("kafka: the message is settled")
	errRevoked = errors.New("kafka: the partition was taken away")
)

// state is where a record stands between its arrival and its commit.
type state int

const (
	pulled    state = iota // taken from the library, not handed over yet
	queued                 // waits for a redelivery, or behind a record of its key that does
	delivered              // handed over, not settled
	done                   // acked
)

// entry is one record of a window.
type entry struct {
	record     *sarama.ConsumerMessage
	state      state
	deliveries int
	retryAt    time.Time
	end        context.CancelCauseFunc // ends the context of the last delivery; nil where it has ended
}

func (e *entry) finish(cause error) {
	if e.end != nil {
		e.end(cause)
		e.end = nil
	}
}

// lane names records that must not pass each other: those of one key, or a record without a key alone.
type lane struct {
	key   string
	alone int64 // the offset where there is no key, else -1
}

func laneOf(r *sarama.ConsumerMessage) lane {
	if r.Key == nil {
		return lane{alone: r.Offset}
	}
	return lane{key: string(r.Key), alone: -1}
}

// window keeps the records of one partition between their arrival and their commit, and says which one comes next. It never
// lets go of the lowest unsettled offset. Safe for concurrent use.
type window struct {
	size int64

	mu        sync.Mutex
	entries   []*entry // by offset; what is done at the front goes with the commit
	low       int      // index of the first entry that is not done
	next      int64    // the offset behind the last record pulled
	pending   *entry   // the last record pulled, while it waits to be handed over
	lanes     map[lane][]*entry
	inFlight  int
	delivered int64 // the offset behind the highest delivered record
	suspects  int64 // below it records may have been delivered before this assignment
	committed int64
	upTo      int64 // the bound of deliveries in the last commit
	begun     bool  // a record has been pulled
	over      bool  // settlements come too late
}

// newWindow makes the window of a partition that was committed at base. Records below suspects may have been delivered.
func newWindow(size int, base, suspects int64) *window {
	return &window{size: int64(size), next: base, committed: base, delivered: base, suspects: suspects, lanes: map[lane][]*entry{}}
}

// wantsMore reports whether a record may be pulled.
func (w *window) wantsMore() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pending == nil
}

// pull takes a record in; the one before must not be pending.
func (w *window) pull(record *sarama.ConsumerMessage) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if record.Offset < w.next {
		if w.begun { // nothing comes twice within one assignment
			return
		}
		w.rebase(record.Offset)
	}
	w.begun = true
	w.pending = &entry{record: record}
	w.entries = append(w.entries, w.pending)
	w.next = record.Offset + 1
}

// rebase begins at an offset below the committed one: the log has been cut, or the topic made anew. Nothing is
// delivered before that is committed.
func (w *window) rebase(base int64) {
	w.next, w.committed, w.delivered, w.suspects = base, base, base, 0
	w.upTo = 0
}

// upcoming returns the record to hand over now, or nil and the time until a redelivery is due; no time is zero.
func (w *window) upcoming(now time.Time) (*entry, time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.choose(now)
}

// isUpcoming reports whether e, chosen before, is still what comes next.
func (w *window) isUpcoming(e *entry, now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	chosen, _ := w.choose(now)
	return chosen == e
}

func (w *window) choose(now time.Time) (*entry, time.Duration) {
	if p := w.pending; p != nil && w.lanes[laneOf(p.record)] != nil && w.allows(p) {
		w.enqueue(p)
		w.pending = nil
	}
	var chosen *entry
	var wait time.Duration
	for _, waiting := range w.lanes {
		first := waiting[0]
		if first.state != queued {
			continue
		}
		if due := first.retryAt.Sub(now); due > 0 {
			if wait == 0 || due < wait {
				wait = due
			}
		} else if chosen == nil || first.record.Offset < chosen.record.Offset {
			chosen = first
		}
	}
	if chosen == nil && w.pending != nil && w.allows(w.pending) {
		chosen = w.pending
	}
	return chosen, wait
}

// allows reports whether the last commit covers the delivery of e.
func (w *window) allows(e *entry) bool {
	return e.record.Offset < min(w.upTo, w.committed+w.size)
}

// enqueue puts e into its lane, by offset.
func (w *window) enqueue(e *entry) {
	l := laneOf(e.record)
	i, _ := slices.BinarySearchFunc(w.lanes[l], e, func(a, b *entry) int { return int(a.record.Offset - b.record.Offset) })
	w.lanes[l] = slices.Insert(w.lanes[l], i, e)
	e.state = queued
}

// leaveLane takes e out of its lane where it stands in one.
func (w *window) leaveLane(e *entry) {
	l := laneOf(e.record)
	waiting := w.lanes[l]
	i := slices.Index(waiting, e)
	if i < 0 {
		return
	}
	if len(waiting) == 1 {
		delete(w.lanes, l)
		return
	}
	w.lanes[l] = slices.Delete(waiting, i, i+1)
}

// handing is what hand-over has changed, so that it can be taken back.
type handing struct {
	entry     *entry
	before    state
	delivered int64
}

// handOver counts e as delivered, just before it is. redelivered says whether it may have been before.
func (w *window) handOver(e *entry, end context.CancelCauseFunc) (h handing, redelivered bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	h = handing{entry: e, before: e.state, delivered: w.delivered}
	redelivered = e.deliveries > 0 || e.record.Offset < w.suspects
	e.state, e.end = delivered, end
	e.deliveries++
	w.inFlight++
	w.delivered = max(w.delivered, e.record.Offset+1)
	return h, redelivered
}

// handed ends a successful hand-over.
func (w *window) handed(e *entry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pending == e {
		w.pending = nil
	}
}

// takeBack undoes handOver: nobody received the message.
func (w *window) takeBack(h handing) {
	w.mu.Lock()
	defer w.mu.Unlock()
	h.entry.finish(errRevoked)
	h.entry.state = h.before
	h.entry.deliveries--
	w.inFlight--
	w.delivered = h.delivered
}

// ack settles e. It reports whether it counted, which it does not when the delivery was taken away before, and whether
// another record of its key has waited for it.
func (w *window) ack(e *entry) (counted, frees bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over {
		return false, false
	}
	w.leaveLane(e)
	e.state = done
	w.inFlight--
	for w.low < len(w.entries) && w.entries[w.low].state == done {
		w.low++
	}
	if e.record.Offset >= w.position() {
		// Something before it is not settled, so the commit of its offset is not within its own reach.
		e.finish(errSettled)
	}
	return true, w.lanes[laneOf(e.record)] != nil
}

// nack queues e for another delivery after delay. It reports whether it counted, and returns what ends the context of the delivery.
func (w *window) nack(e *entry, delay func(deliveries int) time.Duration, now time.Time) (counted bool, end func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over {
		return false, nil
	}
	w.leaveLane(e)
	w.inFlight--
	e.retryAt = now.Add(delay(e.deliveries))
	w.enqueue(e)
	last := entry{end: e.end} // the next delivery has an end of its own
	e.end = nil
	return true, func() { last.finish(errSettled) }
}

// position is the lowest offset that is not settled: what is to be committed.
func (w *window) position() int64 {
	if w.low < len(w.entries) {
		return w.entries[w.low].record.Offset
	}
	return w.next
}

// point is what is committed of a partition: the next record to read, and the bound of what may have been delivered.
type point struct{ offset, upTo int64 }

// due returns the point to commit. It is due when it says more than the last one did.
func (w *window) due() (point, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := point{offset: w.position()}
	p.upTo = max(p.offset+w.size, w.suspects)
	return p, p.offset > w.committed || w.upTo == 0
}

// urgent reports that a commit should not wait for its interval: half of the window is used, or a record waits for it.
func (w *window) urgent() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.upTo == 0 {
		return true
	}
	gain := w.position() - w.committed
	return gain >= w.size/2 || gain > 0 && w.pending != nil && !w.allows(w.pending)
}

// commit notes that p was committed, and ends the contexts of what it covers.
func (w *window) commit(p point) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.upTo = p.upTo
	w.committed = max(w.committed, p.offset)
	n := 0
	for n < w.low && w.entries[n].record.Offset < p.offset {
		w.entries[n].finish(errSettled)
		n++
	}
	w.entries = slices.Delete(w.entries, 0, n)
	w.low -= n
}

// settled reports that nothing is in flight and all settlements are committed.
func (w *window) settled() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.inFlight == 0 && w.position() == w.committed
}

func (w *window) busy() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.inFlight > 0
}

// close ends the contexts of what is in flight; settlements no longer count. It returns how many
// messages were taken away, and the last point to commit, exact now; a second call takes away none.
func (w *window) close() (taken int, last point) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	for _, e := range w.entries {
		if e.state == delivered {
			e.finish(errRevoked)
		}
	}
	taken, w.inFlight = w.inFlight, 0
	last = point{offset: w.position()}
	last.upTo = max(last.offset, w.delivered, w.suspects)
	return taken, last
}

// forget ends the contexts of what was settled but not committed: the last commit did not get through.
func (w *window) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.entries {
		e.finish(errRevoked)
	}
}
