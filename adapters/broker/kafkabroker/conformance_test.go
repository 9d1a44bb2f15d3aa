package kafkabroker_test

import (
	"testing"

	"github.com/oncemill/oncemill/adapters/broker/brokertest"
)

func TestConformance(t *testing.T) { brokertest.Run(t, harness) }

func TestWatermill(t *testing.T) { brokertest.Watermill(t, harness) }
