package dynamotx

import (
	"slices"
	"sync"
)

// recentBytes bounds what is remembered between the calls and their records.
const recentBytes = 16 << 20

// recent remembers the messages of calls until they are recorded, which spares the SQL transaction a request to DynamoDB. What it has
// forgotten is read from the keys table. It is safe for concurrent use.
type recent struct {
	limit int

	mu    sync.Mutex
	bytes int
	order []string // oldest first
	known map[string][]stored
}

func newRecent(limit int) *recent { return &recent{limit: limit, known: map[string][]stored{}} }

func (r *recent) put(id string, list []stored) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.remove(id)
	r.known[id], r.order = list, append(r.order, id)
	r.bytes += weight(list)
	for r.bytes > r.limit {
		r.remove(r.order[0])
	}
}

func (r *recent) get(id string) ([]stored, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	list, known := r.known[id]
	return list, known
}

func (r *recent) drop(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.remove(id)
}

func (r *recent) remove(id string) {
	list, known := r.known[id]
	if !known {
		return
	}
	delete(r.known, id)
	r.order = slices.DeleteFunc(r.order, func(other string) bool { return other == id })
	r.bytes -= weight(list)
}

// weight is about what an entry takes in memory.
func weight(list []stored) int {
	n := 256
	for _, s := range list {
		n += 256 + len(s.Topic) + len(s.UUID) + len(s.Payload)
		for name, value := range s.Metadata {
			n += len(name) + len(value)
		}
	}
	return n
}
