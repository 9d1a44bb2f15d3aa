package kafkabroker_test

import (
	"testing"

	"github.com/oncemill/oncemill/adapters/broker/brokertest"
)

func TestConformance(t *testing.T) { brokertest.Run(t, harness) }

func TestWatermill(t *testing.T) { brokertest.Watermill(t, harness) }

func BenchmarkBroker(b *testing.B) { brokertest.Benchmark(b, newHarness(b)) }

func harness(t *testing.T) brokertest.Harness { return newHarness(t) }
