package app

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/oncemill/oncemill/middleware/idempotency"
	"github.com/oncemill/oncemill/middleware/outbox"
)

// metrics are all series of the application; docs/metrics.md lists them. Labels come from closed sets (scopes of the configuration, kinds, constant
// reasons, outboxes): never a key, an id, a text or an address.
type metrics struct {
	registry *prometheus.Registry
	series   []series

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
	m.messages = m.counter("messages_total",
		"Messages, counted each time that one takes a step; kind says which. A message takes several: one that succeeds at once is received and completed.", "scope", "kind")
	m.failures = m.counter("failures_total",
		"Messages, counted each time that one is retried, parked, made a dead letter, left in doubt or answered for a reason; the same steps as in messages_total, by reason. Reasons are those of dlq list, and the codes of handlers: after 100 of them the rest is \"other\".",
		"scope", "kind", "reason")
	m.cleaned = m.counter("cleaned_keys_total", "Keys that this process removed after their retention; moves at each clean-up, retention.clean_every apart.", "scope")
	m.refused = m.counter("outbox_failed_total", "Records of the outbox, counted each time that this process's relay failed to publish one.", "outbox", "cause")
	m.aside = m.counter("outbox_aside_total", "Records of the outbox that this process's relay set aside, because they cannot be published.", "outbox", "cause")
	m.published = m.counter("outbox_published_total", "Records of the outbox that the broker confirmed and routed, published by this process's relay.", "outbox")
	m.copies = m.counter("outbox_copies_total",
		"Records of the outbox that were published and go out again under the same identity, because they could not be marked as published.", "outbox")
	m.stuck = m.gauge("stuck_handlers", "Handlers of this process that overran their timeout and still run; falls when one returns.", "scope")
	m.records = m.gauge("outbox_records",
		"Records in an outbox (\"database\", or that of a binding), by state: pending ones are to be published now, delayed ones at their time, those aside when a person retries them. Read every 15 seconds, by each process whose relay runs.", "outbox", "state")
	m.parked = m.gauge("parked_messages",
		"Messages in the database that wait for a retry (waiting), are dead letters (dead), or wait for a person (in_doubt). Read at the start and at each clean-up, retention.clean_every apart.", "scope", "state")
	m.lanes = m.gauge("outbox_lanes", "Lanes of the outbox that this process's relay holds, of 16 in all; moves when a relay comes or goes.", "outbox")
	m.oldest = m.gauge("outbox_oldest_age_seconds",
		"Seconds since the oldest pending record of the outbox was written, or was to leave where it was delayed; 0 where none is pending. Read with outbox_records.", "outbox")
	m.durations = m.histogram("message_duration_seconds", "Seconds from a message's entry into the engine to the commit of its effect; moves when a message is completed.", 16, "scope")
	m.lag = m.histogram("outbox_lag_seconds", "Seconds from when the oldest record of a published batch was written, or was to leave where it was delayed, to its publication; one observation for each batch.", 20, "outbox")
	return m
}

// series is what can be said of a metric before it moves.
type series struct {
	name, kind, help string
	labels           []string
}

const metricsNamespace = "oncemill"

// add registers a collector and remembers what it is.
func (m *metrics) add(c prometheus.Collector, kind, name, help string, labels []string) {
	m.registry.MustRegister(c)
	m.series = append(m.series, series{prometheus.BuildFQName(metricsNamespace, "", name), kind, help, labels})
}

func (m *metrics) counter(name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: metricsNamespace, Name: name, Help: help}, labels)
	m.add(c, "counter", name, help, labels)
	return c
}

func (m *metrics) gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: metricsNamespace, Name: name, Help: help}, labels)
	m.add(g, "gauge", name, help, labels)
	return g
}

// histogram has buckets from a millisecond, each twice the one before.
func (m *metrics) histogram(name, help string, buckets int, labels ...string) *prometheus.HistogramVec {
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: metricsNamespace, Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(0.001, 2, buckets),
	}, labels)
	m.add(h, "histogram", name, help, labels)
	return h
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
