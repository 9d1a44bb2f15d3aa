package app

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/oncemill/oncemill/middleware/idempotency"
	"github.com/oncemill/oncemill/middleware/outbox"
)

// metrics are all series of the application. Labels come from closed sets (scopes of the configuration, kinds, constant reasons, outboxes: "database" and bindings):
// never a key, an id, a text or an address.
//
//	oncemill_messages_total{scope,kind}            what happened to messages (see idempotency.EventKind)
//	oncemill_failures_total{scope,kind,reason}     dead letters, parked, retried and in-doubt messages by reason
//	oncemill_message_duration_seconds{scope}       from a message's entry to its commit
//	oncemill_stuck_handlers{scope}                 handlers that overran their timeout and still run
//	oncemill_outbox_published_total{outbox}        records that the broker confirmed and routed
//	oncemill_outbox_failed_total{outbox,cause}     records that were not published
//	oncemill_outbox_aside_total{outbox,cause}      records that were set aside
//	oncemill_outbox_copies_total{outbox}           records published that go out again
//	oncemill_outbox_lag_seconds{outbox}            age of a record when it was published
//	oncemill_outbox_lanes{outbox}                  lanes that this process holds
//	oncemill_outbox_records{outbox,state}          pending, delayed and set-aside records
//	oncemill_outbox_oldest_age_seconds{outbox}     age of the oldest pending record that is due
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
	published *prometheus.CounterVec
	refused   *prometheus.CounterVec
	aside     *prometheus.CounterVec
	copies    *prometheus.CounterVec
	lag       *prometheus.HistogramVec
	lanes     *prometheus.GaugeVec
	records   *prometheus.GaugeVec
	oldest    *prometheus.GaugeVec
	parked    *prometheus.GaugeVec
	cleaned   *prometheus.CounterVec
}

func newMetrics() *metrics {
	m := &metrics{registry: prometheus.NewRegistry(), reasons: map[string]bool{}}
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.messages = m.counter("messages_total", "What happened to messages.", "scope", "kind")
	m.failures = m.counter("failures_total", "Messages retried, parked, buried or in doubt, by reason.", "scope", "kind", "reason")
	m.cleaned = m.counter("cleaned_keys_total", "Keys removed after their retention.", "scope")
	m.refused = m.counter("outbox_failed_total", "Records that were not published.", "outbox", "cause")
	m.aside = m.counter("outbox_aside_total", "Records that were set aside.", "outbox", "cause")
	m.published = m.counter("outbox_published_total", "Records that the broker confirmed and routed.", "outbox")
	m.copies = m.counter("outbox_copies_total", "Records published that could not be marked and go out again.", "outbox")
	m.stuck = m.gauge("stuck_handlers", "Handlers that overran their timeout and still run.", "scope")
	m.records = m.gauge("outbox_records", "Records in the outbox.", "outbox", "state")
	m.parked = m.gauge("parked_messages", "Parked messages.", "scope", "state")
	m.lanes = m.gauge("outbox_lanes", "Outbox lanes that this process holds.", "outbox")
	m.oldest = m.gauge("outbox_oldest_age_seconds", "Age of the oldest pending record that is due.", "outbox")
	m.durations = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: "oncemill", Name: "message_duration_seconds", Help: "From a message's entry to its commit.",
		Buckets: prometheus.ExponentialBuckets(0.001, 2, 16),
	}, []string{"scope"})
	m.lag = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: "oncemill", Name: "outbox_lag_seconds", Help: "Age of a record when it was published.",
		Buckets: prometheus.ExponentialBuckets(0.001, 2, 20),
	}, []string{"outbox"})
	m.registry.MustRegister(m.durations, m.lag)
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

// relay is what the relay of an outbox tells its progress to. All its series are there from the start.
func (m *metrics) relay(where string) outbox.Observer {
	published, copies, lag := m.published.WithLabelValues(where), m.copies.WithLabelValues(where), m.lag.WithLabelValues(where)
	lanes, oldest := m.lanes.WithLabelValues(where), m.oldest.WithLabelValues(where)
	for _, cause := range outbox.Causes() {
		m.refused.WithLabelValues(where, string(cause))
		m.aside.WithLabelValues(where, string(cause))
	}
	return outbox.Observer{
		Published: func(n int) { published.Add(float64(n)) },
		Failed:    func(n int, c outbox.Cause) { m.refused.WithLabelValues(where, string(c)).Add(float64(n)) },
		Aside:     func(n int, c outbox.Cause) { m.aside.WithLabelValues(where, string(c)).Add(float64(n)) },
		Copies:    func(n int) { copies.Add(float64(n)) },
		Lag:       func(age time.Duration) { lag.Observe(age.Seconds()) },
		Lanes:     func(n int) { lanes.Set(float64(n)) },
		Status: func(s outbox.Status) {
			m.records.WithLabelValues(where, "pending").Set(float64(s.Pending))
			m.records.WithLabelValues(where, "delayed").Set(float64(s.Delayed))
			m.records.WithLabelValues(where, "aside").Set(float64(s.Aside))
			oldest.Set(s.OldestAge.Seconds())
		},
	}
}
