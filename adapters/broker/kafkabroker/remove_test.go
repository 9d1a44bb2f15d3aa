package kafkabroker_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
)

// A member that died is in its group until its session is over: what is removed waits for that.
func TestRemoveAfterADeath(t *testing.T) {
	t.Parallel()
	topic := newTopic(t, 1, nil)
	own := &line{}
	conf := testConfig(t)
	conf.Dial = own.dial
	dying := open(t, conf)
	require.NoError(t, dying.Publisher().Publish(topic, newMessages(1, "entity")...))
	sub := broker.Subscription{Topic: topic, Group: topic}
	r := subscribe(t, dying, sub)
	r.next() // it is a member
	own.cut()

	b := open(t, testConfig(t))
	require.NoError(t, b.Declare(t.Context(), topic, []broker.Subscription{sub}))
	require.NoError(t, b.Remove(t.Context(), topic, []broker.Subscription{sub}))
	groups, err := admin(t).ListConsumerGroups()
	require.NoError(t, err)
	require.NotContains(t, groups, topic)
}
