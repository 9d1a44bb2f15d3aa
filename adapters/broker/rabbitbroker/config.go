package rabbitbroker

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/oncemill/oncemill/middleware/envelope"
)

// Name is the broker's name, in Factory and in envelope.Delivery.
const Name = "rabbitmq"

// Queue types.
const (
	Quorum  = "quorum"
	Classic = "classic"
)

// Ways to treat the topology.
const (
	Declare = "declare"
	Verify  = "verify"
	Off     = "off"
)

// Config is the adapter's configuration.
type Config struct {
	// URL is amqp://user:password@host:port/vhost, or amqps for TLS. Reserved characters in user and password are
	// percent-encoded. The query may hold what amqp091-go reads there, such as heartbeat=5 and auth_mechanism=external.
	// Defaults to amqp://guest:guest@127.0.0.1:5672/.
	URL string `yaml:"url"`
	// URLFile is a file that holds the URL; it is read for each connection, so that a password can be changed
	// without a restart. It takes the place of URL.
	URLFile string `yaml:"url_file"`
	// TLS is for amqps; empty fields take the system's certificates.
	TLS TLS `yaml:"tls"`
	// QueueType is the type of declared queues: quorum or classic. It cannot be changed on a queue that exists. Defaults to quorum.
	QueueType string `yaml:"queue_type"`
	// DeliveryLimit is the x-delivery-limit of declared quorum queues: after so many deliveries RabbitMQ drops the message, or
	// dead-letters it where a policy says where to. Oncemill counts attempts itself; a low limit loses messages. Defaults to 1000000.
	DeliveryLimit int `yaml:"delivery_limit"`
	// Topology is declare (make what is missing), verify (fail when it is missing), or off. Defaults to declare.
	Topology string `yaml:"topology"`
	// Prefetch is how many messages the broker sends ahead of their acks to each subscription. Defaults to
	// the binding's number in flight.
	Prefetch int `yaml:"prefetch"`
	// PublishTimeout bounds each publish from its first byte to the last confirm. Defaults to 30s.
	PublishTimeout time.Duration `yaml:"publish_timeout"`
	// Topics maps logical topics to names of exchanges and queues that exist already.
	Topics map[string]Topic `yaml:"topics"`
}

// TLS names the certificate files of an amqps connection. They are read for each connection.
type TLS struct {
	CAFile     string `yaml:"ca_file"`
	CertFile   string `yaml:"cert_file"`
	KeyFile    string `yaml:"key_file"`
	ServerName string `yaml:"server_name"`
}

// Topic is what a logical topic is called in RabbitMQ.
type Topic struct {
	// Exchange is published to. The empty text, where it is given, is RabbitMQ's default exchange, which routes by the
	// queue's name. Defaults to the topic's name.
	Exchange *string `yaml:"exchange"`
	// ExchangeType is fanout, direct, topic or headers. Defaults to fanout.
	ExchangeType string `yaml:"exchange_type"`
	// RoutingKey is published with, and is what queues are bound by. On the default exchange it defaults to the
	// topic's only queue.
	RoutingKey string `yaml:"routing_key"`
	// Queues maps a group to its queue. A group that is not named has the queue "topic:group".
	Queues map[string]string `yaml:"queues"`
}

const (
	maxName       = 255 // bytes of an AMQP short string
	limitNever    = 1_000_000
	publishWithin = 30 * time.Second
)

func defaults() Config {
	return Config{
		URL:            "amqp://guest:guest@127.0.0.1:5672/",
		QueueType:      Quorum,
		DeliveryLimit:  limitNever,
		Topology:       Declare,
		PublishTimeout: publishWithin,
	}
}

// Validate returns everything that is wrong, by the names of the fields.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.URLFile == "" {
		if _, err := parseURL(c.URL); err != nil {
			bad("url: %w", err)
		}
	}
	if (c.TLS.CertFile == "") != (c.TLS.KeyFile == "") {
		bad("tls: cert_file and key_file belong together")
	}
	if !slices.Contains([]string{Quorum, Classic}, c.QueueType) {
		bad("queue_type: %q is neither %s nor %s", c.QueueType, Quorum, Classic)
	}
	if !slices.Contains([]string{Declare, Verify, Off}, c.Topology) {
		bad("topology: %q is none of %s, %s, %s", c.Topology, Declare, Verify, Off)
	}
	if c.DeliveryLimit < 1 {
		bad("delivery_limit: %d; it is at least 1", c.DeliveryLimit)
	}
	if c.Prefetch < 0 || c.Prefetch > maxPrefetch {
		bad("prefetch: %d is not in 0 to %d", c.Prefetch, maxPrefetch)
	}
	if c.PublishTimeout <= 0 {
		bad("publish_timeout: %s; it must be above zero", c.PublishTimeout)
	}
	return errors.Join(append(errs, c.validateTopics()...)...)
}

func (c Config) validateTopics() []error {
	var errs []error
	owner := map[string]string{} // of each mapped queue
	for name, topic := range c.Topics {
		bad := func(format string, args ...any) {
			errs = append(errs, fmt.Errorf("topics: %s: "+format, append([]any{name}, args...)...))
		}
		if err := envelope.ValidateTopic(name); err != nil {
			bad("%w", err)
		}
		if topic.ExchangeType != "" && !slices.Contains([]string{"fanout", "direct", "topic", "headers"}, topic.ExchangeType) {
			bad("exchange_type %q is none of fanout, direct, topic, headers", topic.ExchangeType)
		}
		if topic.Exchange != nil && *topic.Exchange == "" && topic.RoutingKey == "" && len(topic.Queues) != 1 {
			bad("the default exchange reaches one queue: name it as routing_key")
		}
		if len(topic.RoutingKey) > maxName || topic.Exchange != nil && len(*topic.Exchange) > maxName {
			bad("a name is longer than %d bytes", maxName)
		}
		for group, queue := range topic.Queues {
			at := name + ", group " + group
			if queue == "" || len(queue) > maxName {
				bad("the queue of group %s has %d bytes, 1 to %d are allowed", group, len(queue), maxName)
			}
			if other, taken := owner[queue]; taken {
				bad("queue %q belongs to %s and to %s: each group needs a queue of its own", queue, min(at, other), max(at, other))
			}
			owner[queue] = at
		}
	}
	return errs
}
