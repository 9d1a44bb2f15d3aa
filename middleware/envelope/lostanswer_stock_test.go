//go:build !race

// Watermill's AMQP connection changes fields without a lock while it reconnects, which the race detector reports. So this test runs without it.

package envelope_test

import (
	"net/url"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/internal/testenv"
)

// TestALostAnswerIsHarmlessWithStockAMQP is TestALostAnswerIsHarmless with Watermill's own publisher and subscriber.
func TestALostAnswerIsHarmlessWithStockAMQP(t *testing.T) {
	t.Parallel()
	loseAnAnswer(t, onStockAMQP)
}

// A publisher with confirms. Its pool keeps a channel open, so that only the confirm is waited for.
func onStockAMQP(t *testing.T, _ string) wire {
	rabbit := testenv.RabbitMQ(t)
	u, err := url.Parse(rabbit.URL)
	require.NoError(t, err)
	proxy := testenv.Proxy(t, u.Host)
	sub, err := amqp.NewSubscriber(amqp.NewDurableQueueConfig(rabbit.URL), watermill.NopLogger{})
	require.NoError(t, err)
	u.Host = proxy.Addr
	config := amqp.NewDurableQueueConfig(u.String())
	config.Publish.ConfirmDelivery, config.Publish.ChannelPoolSize = true, 1
	pub, err := amqp.NewPublisher(config, watermill.NopLogger{})
	require.NoError(t, err)
	return wire{proxy, pub, sub}
}
