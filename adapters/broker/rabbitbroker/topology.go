package rabbitbroker

import (
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/oncemill/oncemill/adapters/broker"
)

// place is where a logical topic stands in RabbitMQ.
type place struct {
	exchange string
	kind     string
	key      string
}

func (c Config) place(topic string) place {
	t := c.Topics[topic]
	p := place{exchange: topic, kind: t.ExchangeType, key: t.RoutingKey}
	if t.Exchange != nil {
		p.exchange = *t.Exchange
	}
	if p.kind == "" {
		p.kind = "fanout"
	}
	if p.exchange == "" && p.key == "" {
		for _, queue := range t.Queues { // Validate saw to it that there is one
			p.key = queue
		}
	}
	return p
}

func (c Config) queue(topic, group string) string {
	if queue := c.Topics[topic].Queues[group]; queue != "" {
		return queue
	}
	return topic + ":" + group
}

// queueArguments are the same on every start: RabbitMQ refuses a queue that exists with others.
func (c Config) queueArguments(ordered bool) amqp.Table {
	args := amqp.Table{amqp.QueueTypeArg: c.QueueType}
	if c.QueueType == Quorum {
		args["x-delivery-limit"] = int64(c.DeliveryLimit)
	}
	if ordered {
		args[amqp.SingleActiveConsumerArg] = true
	}
	return args
}

// watermill returns what watermill-amqp's topology builder declares for a topic.
func (c Config) watermill(p place, ordered bool) wamqp.Config {
	return wamqp.Config{
		Exchange: wamqp.ExchangeConfig{Type: p.kind, Durable: true},
		Queue:    wamqp.QueueConfig{Durable: true, Arguments: c.queueArguments(ordered)},
	}
}

// prepareExchange makes sure, as Topology says, of what publishing to the topic needs.
func (c Config) prepareExchange(ch *amqp.Channel, topic string) error {
	p := c.place(topic)
	if p.exchange == "" || c.Topology == Off {
		return nil
	}
	if c.Topology == Verify {
		err := ch.ExchangeDeclarePassive(p.exchange, p.kind, true, false, false, false, nil)
		return topologyError(err, fmt.Sprintf("exchange %q of topic %s", p.exchange, topic))
	}
	err := (&wamqp.DefaultTopologyBuilder{}).ExchangeDeclare(ch, p.exchange, c.watermill(p, false))
	return topologyError(err, fmt.Sprintf("exchange %q of topic %s", p.exchange, topic))
}

// prepareQueue makes sure, as Topology says, of a group's queue and its binding.
func (c Config) prepareQueue(ch *amqp.Channel, sub broker.Subscription) error {
	queue := c.queue(sub.Topic, sub.Group)
	what := fmt.Sprintf("queue %q of topic %s", queue, sub.Topic)
	switch c.Topology {
	case Off:
		return nil
	case Verify:
		_, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		return topologyError(err, what)
	}
	p := c.place(sub.Topic)
	if p.exchange == "" && p.key != queue {
		return fmt.Errorf("rabbitmq: %s: topic %s is published to the default exchange, which reaches queue %q only", what, sub.Topic, p.key)
	}
	err := (&wamqp.DefaultTopologyBuilder{}).BuildTopology(ch, wamqp.BuildTopologyParams{
		Topic:        sub.Topic,
		QueueName:    queue,
		ExchangeName: p.exchange,
		RoutingKey:   p.key,
	}, c.watermill(p, sub.Ordered), watermill.NopLogger{})
	return topologyError(err, what)
}

// topologyError says what to do about a refusal of the broker.
func topologyError(err error, what string) error {
	if err == nil {
		return nil
	}
	advice := ""
	var refusal *amqp.Error
	if errors.As(err, &refusal) {
		switch refusal.Code {
		case amqp.PreconditionFailed:
			advice = "; it exists with other properties: set topology to verify to use it as it is, or delete it (a low x-delivery-limit without a dead-letter exchange loses messages)"
		case amqp.AccessRefused:
			advice = "; this user may not declare it: set topology to verify, or grant configure, write and read permissions"
		case amqp.NotFound:
			advice = "; it does not exist: have it made, or set topology to declare"
		}
	}
	return fmt.Errorf("rabbitmq: %s: %w%s", what, err, advice)
}

// permanent reports whether a refusal of the broker will not pass by itself.
func permanent(err error) bool {
	var refusal *amqp.Error
	if !errors.As(err, &refusal) {
		return false
	}
	switch refusal.Code {
	case amqp.PreconditionFailed, amqp.AccessRefused, amqp.NotFound, amqp.ResourceLocked, amqp.NotAllowed, amqp.NotImplemented:
		return true
	}
	return false
}
