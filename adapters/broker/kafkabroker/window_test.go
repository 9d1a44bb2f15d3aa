package kafkabroker

import (
	"fmt"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func keyed(offset int64, key string) *sarama.ConsumerMessage {
	r := &sarama.ConsumerMessage{Topic: "t", Offset: offset}
	if key != "" {
		r.Key = []byte(key)
	}
	return r
}

// windowModel drives a window as claim and generation do, at random, and checks after each step what the window promises.
type windowModel struct {
	w         *window
	now       time.Time
	next      int64
	inFlight  map[int64]*entry
	committed point
	highest   int64 // behind the highest record ever handed over
	acked     map[int64]bool
	keys      map[int64]string
	waiting   map[int64]bool // nacked, not handed over again
}

func newWindowModel(size int) *windowModel {
	m := &windowModel{
		w: newWindow(size, 10, 10), now: time.Unix(1000, 0), next: 10,
		inFlight: map[int64]*entry{}, acked: map[int64]bool{}, keys: map[int64]string{}, waiting: map[int64]bool{},
		highest: 10,
	}
	m.commit()
	return m
}

func (m *windowModel) commit() {
	p, due := m.w.due()
	if !due {
		return
	}
	m.w.commit(p)
	m.committed = p
}

func (m *windowModel) pull(t *rapid.T) {
	if !m.w.wantsMore() {
		return
	}
	m.next += rapid.Int64Range(0, 12).Draw(t, "gap")
	key := rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "key")
	m.keys[m.next] = key
	m.w.pull(keyed(m.next, key))
	m.next++
}

func (m *windowModel) handOver(t *rapid.T) {
	e, _ := m.w.upcoming(m.now)
	if e == nil {
		return
	}
	offset := e.record.Offset
	_, redelivered := m.w.handOver(e, func(error) {})
	m.w.handed(e)
	require.Less(t, offset, m.committed.upTo, "delivered beyond what the last commit allows")
	require.Equal(t, m.waiting[offset], redelivered)
	require.NotContains(t, m.inFlight, offset)
	for waiting := range m.waiting {
		if key := m.keys[offset]; key != "" && m.keys[waiting] == key {
			require.GreaterOrEqual(t, waiting, offset, "a record passes one of its key that waits")
		}
	}
	delete(m.waiting, offset)
	m.inFlight[offset] = e
	m.highest = max(m.highest, offset+1)
}

func (m *windowModel) settle(t *rapid.T, ack bool) {
	if len(m.inFlight) == 0 {
		return
	}
	var offsets []int64
	for offset := range m.inFlight {
		offsets = append(offsets, offset)
	}
	offset := rapid.SampledFrom(offsets).Draw(t, "settled")
	e := m.inFlight[offset]
	delete(m.inFlight, offset)
	if ack {
		counted, _ := m.w.ack(e)
		require.True(t, counted)
		m.acked[offset] = true
		return
	}
	counted, _ := m.w.nack(e, retryDelay, m.now)
	require.True(t, counted)
	m.waiting[offset] = true
}

func (m *windowModel) check(t *rapid.T) {
	p, _ := m.w.due()
	for offset := range m.keys {
		if !m.acked[offset] {
			require.LessOrEqual(t, p.offset, offset, "an unsettled record would be committed")
		}
	}
	require.LessOrEqual(t, m.highest, m.committed.upTo, "a successor would not know of a delivery")
	require.LessOrEqual(t, m.highest-m.committed.offset, m.w.size, "more than a window is delivered beyond the commit")
}

// Whatever the order of acks and nacks: nothing unsettled is committed, no record of a key passes one that waits, and a
// commit always says how far deliveries may have come.
func TestWindowInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newWindowModel(rapid.IntRange(2, 20).Draw(t, "size"))
		t.Repeat(map[string]func(*rapid.T){
			"pull":    m.pull,
			"deliver": m.handOver,
			"ack":     func(t *rapid.T) { m.settle(t, true) },
			"nack":    func(t *rapid.T) { m.settle(t, false) },
			"commit":  func(*rapid.T) { m.commit() },
			"time":    func(*rapid.T) { m.now = m.now.Add(time.Second) },
			"":        m.check,
		})
		m.finish(t)
	})
}

// finish shows that nothing is ever stuck: with acks and time everything is settled.
func (m *windowModel) finish(t *rapid.T) {
	for range 10 * (len(m.keys) + 1) {
		m.now = m.now.Add(10 * time.Second)
		m.commit()
		m.handOver(t)
		if len(m.inFlight) > 0 {
			m.settle(t, true)
		}
		m.check(t)
	}
	m.commit()
	require.Len(t, m.acked, len(m.keys), "a record is stuck")
	require.True(t, m.w.settled())
	taken, last := m.w.close()
	require.Zero(t, taken)
	require.Equal(t, point{offset: max(m.next, 10), upTo: max(m.next, 10)}, last, "a clean end leaves suspects")
}

// A log that was cut, or a topic made anew, goes on below the committed offset.
func TestWindowRebase(t *testing.T) {
	w := newWindow(4, 100, 104)
	p, due := w.due()
	require.True(t, due)
	w.commit(p)
	w.pull(keyed(3, ""))
	e, _ := w.upcoming(time.Now())
	require.Nil(t, e, "delivered before the lower offset is committed")
	require.True(t, w.urgent())
	p, due = w.due()
	require.True(t, due)
	require.Equal(t, point{offset: 3, upTo: 7}, p)
	w.commit(p)
	e, _ = w.upcoming(time.Now())
	require.NotNil(t, e)
}

func TestRetryDelay(t *testing.T) {
	for deliveries, want := range map[int]time.Duration{1: 100 * time.Millisecond, 2: 200 * time.Millisecond, 7: 5 * time.Second, 1000: 5 * time.Second} {
		require.Equal(t, want, retryDelay(deliveries), fmt.Sprint(deliveries))
	}
}

// A free slot goes to the partition that has the fewest.
func TestSlotsAreFair(t *testing.T) {
	s := newSlots(3)
	var busy, idle int
	for range 3 {
		<-s.request(&busy).granted
	}
	again := s.request(&busy)
	first := s.request(&idle)
	s.release(&busy)
	<-first.granted
	require.Equal(t, 1, idle)
	s.withdraw(first)
	<-again.granted
	s.withdraw(s.request(&idle))
	require.Equal(t, 3, busy)
	require.Zero(t, idle)
}
