package dynamotx

import (
	"container/list"
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
	order *list.List // of remembered, oldest first
	known map[string]*list.Element
}

type remembered struct {
	id       string
	messages []stored
	bytes    int
}

func newRecent(limit int) *recent {
	return &recent{limit: limit, order: list.New(), known: map[string]*list.Element{}}
}

func (r *recent) put(id string, messages []stored) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.remove(r.known[id])
	one := remembered{id, messages, weight(messages)}
	r.known[id] = r.order.PushBack(one)
	r.bytes += one.bytes
	for r.bytes > r.limit {
		r.remove(r.order.Front())
	}
}

func (r *recent) get(id string) ([]stored, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e, known := r.known[id]
	if !known {
		return nil, false
	}
	return e.Value.(remembered).messages, true
}

func (r *recent) drop(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.remove(r.known[id])
}

func (r *recent) remove(e *list.Element) {
	if e == nil {
		return
	}
	one := r.order.Remove(e).(remembered)
	delete(r.known, one.id)
	r.bytes -= one.bytes
}

// weight is about what messages take in memory.
func weight(messages []stored) int {
	n := 256
	for _, s := range messages {
		n += 256 + len(s.Topic) + len(s.UUID) + len(s.Payload)
		for name, value := range s.Metadata {
			n += len(name) + len(value)
		}
	}
	return n
}
