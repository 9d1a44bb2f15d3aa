package kafkabroker

import "github.com/rcrowley/go-metrics"

// noMetrics is a registry that measures nothing. The library's own measurements would start a
// goroutine that nothing ends, and nobody reads them.
type noMetrics struct{ metrics.Registry }

func newNoMetrics() metrics.Registry { return noMetrics{metrics.NewRegistry()} }

// GetOrRegister returns a metric that does nothing, of the kind that the caller would have made.
func (r noMetrics) GetOrRegister(name string, metric any) any {
	switch metric.(type) {
	case func() metrics.Meter:
		return metrics.NilMeter{}
	case func() metrics.Histogram:
		return metrics.NilHistogram{}
	case func() metrics.Counter:
		return metrics.NilCounter{}
	}
	return r.Registry.GetOrRegister(name, metric)
}
