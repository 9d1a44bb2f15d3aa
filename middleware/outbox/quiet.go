package outbox

import (
	"sync"
	"time"
)

// sayAgain is how long the log is silent about a trouble that goes on.
const sayAgain = 30 * time.Second

// quiet keeps a trouble that goes on for hours from filling the log: it is told when it begins, and then once in a while.
// Its zero value is ready; it is safe for concurrent use.
type quiet struct {
	mu    sync.Mutex
	told  map[string]time.Time
	since map[string]int
}

// tell counts n cases of what at the time now. It reports whether to say so, and how many cases
// there were since it was said last.
func (q *quiet) tell(what string, n int, now time.Time) (say bool, cases int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.told == nil {
		q.told, q.since = map[string]time.Time{}, map[string]int{}
	}
	q.since[what] += n
	if at, before := q.told[what]; before && now.Sub(at) < sayAgain {
		return false, 0
	}
	cases = q.since[what]
	q.told[what], q.since[what] = now, 0
	return true, cases
}
