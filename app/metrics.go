package app

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/oncemill/oncemill/middleware/idempotency"
	"github.com/oncemill/oncemill/middleware/outbox"
)

// metrics are all series of the application. Labels come from closed sets (scopes of the configuration, kinds, constant reasons):
// never a key, an id, a text or an address.
//
//	oncemill_messages_total{scope,kind}            what happened to messages (see idempotency.EventKind)
//	oncemill_failures_total{scope,kind,reason}     dead letters, parked, retried and in-doubt messages by reason
//	oncemill_message_duration_seconds{scope}       from a message's entry to its commit
//	oncemill_stuck_handlers{scope}                 handlers that overran their timeout and still run
//	oncemill_outbox_published_total                records that the broker confirmed and routed
//	oncemill_outbox_failed_total{cause}            records that were not published
//	oncemill_outbox_aside_total{cause}             records that were set aside
//	oncemill_outbox_copies_total                   records published that go out again
//	oncemill_outbox_lag_seconds                    age of a record when it was published
//	oncemill_outbox_lanes                          lanes that this process holds
//	oncemill_outbox_records{state}                 pending, delayed and set-aside records
//	oncemill_outbox_oldest_age_seconds             age of the oldest pending record that is due
//	oncemill_parked_messages{scope,state}          waiting, dead and in-doubt messages
//	oncemill_cleaned_keys_total{scope}             keys removed after their retention
type metrics struct {
	registry *prometheus.Registry

	mu      sync.Mutex
	reasons map[string]bool // label values that exist, see reason

	messages  *prometheus.CounterVec
	failures  *prometheus.CounterVec
	durations *prometheus.HistogramVec
	stuck     *prometheus.GaugeVec
	published prometheus.Counter
	refused   *prometheus.CounterVec
	aside     *prometheus.CounterVec
	copies    prometheus.Counter
	lag       prometheus.Histogram
	lanes     prometheus.Gauge
	records   *prometheus.GaugeVec
	oldest    prometheus.Gauge
	parked    *prometheus.GaugeVec
	cleaned   *prometheus.CounterVec
}

func newMetrics() *metrics {
	m := &metrics{registry: prometheus.NewRegistry(), reasons: map[string]bool{}}
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.messages = m.counter("messages_total", "What happened to messages.", "scope", "kind")
	m.failures = m.counter("failures_total", "Messages retried, parked, buried or in doubt, by reason.", "scope", "kind", "reason")
	m.cleaned = m.counter("cleaned_keys_total", "Keys removed after their retention.", "scope")
	m.refused = m.counter("outbox_failed_total", "Records that were not published.", "cause")
	m.aside = m.counter("outbox_aside_total", "Records that were set aside.", "cause")
	m.published = m.counter("outbox_published_total", "Records that the broker confirmed and routed.").WithLabelValues()
	m.copies = m.counter("outbox_copies_total", "Records published that could not be marked and go out again.").WithLabelValues()
	m.stuck = m.gauge("stuck_handlers", "Handlers that overran their timeout and still run.", "scope")
	m.records = m.gauge("outbox_records", "Records in the outbox.", "state")
	m.parked = m.gauge("parked_messages", "Parked messages.", "scope", "state")
	m.lanes = m.gauge("outbox_lanes", "Outbox lanes that this process holds.").WithLabelValues()
	m.oldest = m.gauge("outbox_oldest_age_seconds", "Age of the oldest pending record that is due.").WithLabelValues()
	m.durations = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: "oncemill", Name: "message_duration_seconds", Help: "From a message's entry to its commit.",
		Buckets: prometheus.ExponentialBuckets(0.001, 2, 16),
	}, []string{"scope"})
	m.lag = prometheus.NewHistogram(prometheus.HistogramOpts{
		Namespace: "oncemill", Name: "outbox_lag_seconds", Help: "Age of a record when it was published.",
		Buckets: prometheus.ExponentialBuckets(0.001, 2, 20),
	})
	m.registry.MustRegister(m.durations, m.lag)
	for _, cause := range outbox.Causes() {
		m.refused.WithLabelValues(string(cause))
		m.aside.WithLabelValues(string(cause))
	}
	return m
}

func (m *metrics) counter(name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "oncemill", Name: name, Help: help}, labels)
	m.registry.MustRegister(c)
	return c
}

func (m *metrics) gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "oncemill", Name: name, Help: help}, labels)
	m.registry.MustRegister(g)
	return g
}

// maxReasons bounds the series that handlers' own reasons can make.
const maxReasons = 100

// reason returns the label of a reason. Handlers choose their own codes; one that puts a key or an id into its
// codes must not make a series of each, so beyond the bound they are all "other".
func (m *metrics) reason(code string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.reasons[code] {
		if len(m.reasons) >= maxReasons {
			return "other"
		}
		m.reasons[code] = true
	}
	return code
}

// engine counts an event of an engine.
func (m *metrics) engine(e idempotency.Event) {
	switch e.Kind {
	case idempotency.EventAbandoned:
		m.stuck.WithLabelValues(e.Scope).Inc()
	case idempotency.EventAbandonedOK:
		m.stuck.WithLabelValues(e.Scope).Dec()
	}
	m.messages.WithLabelValues(e.Scope, string(e.Kind)).Inc()
	if e.Reason != "" {
		m.failures.WithLabelValues(e.Scope, string(e.Kind), m.reason(e.Reason)).Inc()
	}
	if e.Kind == idempotency.EventCompleted {
		m.durations.WithLabelValues(e.Scope).Observe(e.Duration.Seconds())
	}
}

// relay is what the relay tells its progress to.
func (m *metrics) relay() outbox.Observer {
	return outbox.Observer{
		Published: func(n int) { m.published.Add(float64(n)) },
		Failed:    func(n int, c outbox.Cause) { m.refused.WithLabelValues(string(c)).Add(float64(n)) },
		Aside:     func(n int, c outbox.Cause) { m.aside.WithLabelValues(string(c)).Add(float64(n)) },
		Copies:    func(n int) { m.copies.Add(float64(n)) },
		Lag:       func(age time.Duration) { m.lag.Observe(age.Seconds()) },
		Lanes:     func(n int) { m.lanes.Set(float64(n)) },
		Status: func(s outbox.Status) {
			m.records.WithLabelValues("pending").Set(float64(s.Pending))
			m.records.WithLabelValues("delayed").Set(float64(s.Delayed))
			m.records.WithLabelValues("aside").Set(float64(s.Aside))
			m.oldest.Set(s.OldestAge.Seconds())
		},
	}
}
