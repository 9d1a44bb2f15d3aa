package app

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/idempotency"
	"github.com/oncemill/oncemill/middleware/outbox"
)

// scrape returns the lines of the metrics page that are series, and how long the page took.
func (m *metrics) scrape(t *testing.T) (series []string, took time.Duration) {
	t.Helper()
	began := time.Now()
	page := httptest.NewRecorder()
	promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{}).ServeHTTP(page, httptest.NewRequest("GET", "/metrics", nil))
	took = time.Since(began)
	require.Equal(t, 200, page.Code)
	for _, line := range strings.Split(page.Body.String(), "\n") {
		if line != "" && !strings.HasPrefix(line, "#") {
			series = append(series, line)
		}
	}
	return series, took
}

// F084: 100,000 messages, 1,000 failures of different texts and 50 malformed topics make no series of their own, and a scrape stays fast.
func TestF084SeriesDoNotGrow(t *testing.T) {
	t.Parallel()
	m := newMetrics()
	scopes := []string{"shop/a", "shop/b", "shop/c", "shop/d", "shop/e"}
	relay := m.relay(inDatabase)
	work := func(n int) {
		for i := range n {
			scope := scopes[i%len(scopes)]
			m.engine(idempotency.Event{Kind: idempotency.EventReceived, Scope: scope})
			m.engine(idempotency.Event{Kind: idempotency.EventCompleted, Scope: scope, Duration: time.Duration(i%1000) * time.Microsecond})
			m.engine(idempotency.Event{Kind: idempotency.EventDuplicate, Scope: scope})
			if i%100 == 0 {
				m.engine(idempotency.Event{Kind: idempotency.EventRetried, Scope: scope, Reason: "handler-error"})
				m.engine(idempotency.Event{Kind: idempotency.EventDead, Scope: scope, Reason: "attempts-exhausted"})
			}
		}
		relay.Published(n)
		relay.Lag(time.Second)
		for _, cause := range outbox.Causes() {
			relay.Failed(50, cause)
			relay.Aside(50, cause)
		}
		relay.Status(outbox.Status{Pending: int64(n), Aside: 1, OldestAge: time.Minute})
	}
	work(1000)
	before, _ := m.scrape(t)
	work(100_000)
	after, took := m.scrape(t)
	require.Len(t, after, len(before))
	require.Less(t, took, 5*time.Second)
}

// A plugin that puts ids into its codes costs a bounded number of series.
func TestF084CodesOfACarelessPlugin(t *testing.T) {
	t.Parallel()
	m := newMetrics()
	before, _ := m.scrape(t)
	for i := range 10_000 {
		m.engine(idempotency.Event{Kind: idempotency.EventDead, Scope: "shop/a", Reason: fmt.Sprintf("order-%d-refused", i)})
	}
	after, _ := m.scrape(t)
	require.LessOrEqual(t, len(after)-len(before), maxReasons+2)
	require.Contains(t, strings.Join(after, "\n"), `oncemill_failures_total{kind="dead_letter",reason="other",scope="shop/a"}`)
}

// F084: a running program, with real messages: no label holds a key, an id, a text or an address.
func TestF084LabelsHoldNothingForeign(t *testing.T) {
	t.Parallel()
	l := &tally{}
	c := newConsole(t, l.set())
	l.does(refuseAll)
	run := c.start()
	id := c.bury("key-of-somebody")[0]
	row := decode[rowView](c, "dlq", "show", id)
	_, page, err := run.get("/metrics")
	require.NoError(t, err)
	for _, foreign := range []string{"key-of-somebody", row.UUID, "closed", "127.0.0.1"} {
		require.NotContains(t, page, foreign)
	}
	require.Contains(t, page, `reason="not-today"`)
}

func TestStuckHandlersAreCounted(t *testing.T) {
	t.Parallel()
	m := newMetrics()
	stuck := func() string {
		series, _ := m.scrape(t)
		for _, line := range series {
			if strings.HasPrefix(line, "oncemill_stuck_handlers{") {
				return line[strings.LastIndexByte(line, ' ')+1:]
			}
		}
		return ""
	}
	for range 3 {
		m.engine(idempotency.Event{Kind: idempotency.EventAbandoned, Scope: "s"})
	}
	require.Equal(t, "3", stuck())
	m.engine(idempotency.Event{Kind: idempotency.EventAbandonedOK, Scope: "s"})
	require.Equal(t, "2", stuck())
}
