package kafkabroker

import (
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"time"

	"github.com/IBM/sarama"

	"github.com/oncemill/oncemill/middleware/envelope"
)

// Topology says who makes topics.
const (
	// TopologyDeclare makes missing topics.
	TopologyDeclare = "declare"
	// TopologyVerify makes nothing and reports a missing topic.
	TopologyVerify = "verify"
	// TopologyOff makes and checks nothing.
	TopologyOff = "off"
)

// Config is the configuration of the adapter.
type Config struct {
	// Brokers are the addresses, host:port, from which the cluster is found. Required.
	Brokers []string `yaml:"brokers"`
	// ClientID names this program in the brokers' logs and quotas. Defaults to the application's name for itself.
	ClientID string `yaml:"client_id"`
	// Version is the oldest version among the brokers; the protocol is never newer. Lower it only for clusters older than the default, at least 2.1.
	// Defaults to 2.8.0.
	Version string `yaml:"version"`

	// Topology says who makes topics: "declare" (default), "verify" or "off".
	Topology string `yaml:"topology"`
	// Partitions is the number of partitions of a topic that is made here; an existing topic keeps its own. It bounds the number of
	// replicas that work at the same time, and a later change moves keys to other partitions. Defaults to 6.
	Partitions int32 `yaml:"partitions"`
	// Replication is the number of copies of a topic that is made here; -1 is the cluster's default. Defaults to -1.
	Replication int16 `yaml:"replication"`
	// MinInsyncReplicas is min.insync.replicas of a topic that is made here; 0 is the cluster's default. With one,
	// a confirmed record may exist once only. Defaults to 0.
	MinInsyncReplicas int `yaml:"min_insync_replicas"`
	// Topics maps logical topics to what they are called in the cluster. Others have their logical name.
	Topics map[string]TopicConfig `yaml:"topics"`
	// Groups maps the application's group names to consumer groups. Others have their own name.
	Groups map[string]string `yaml:"groups"`

	// MaxMessageBytes is the largest record, with its headers. It must not be above the brokers' message.max.bytes. Defaults to the application's
	// largest payload plus 64 KiB.
	MaxMessageBytes int `yaml:"max_message_bytes"`

	// Window is the largest number of offsets of one partition that are delivered beyond the committed one; after a crash as
	// many records are treated as suspects. Between 2 and 4096. Defaults to 256.
	Window int `yaml:"window"`
	// OffsetsInterval is the time between commits of offsets; a half used window commits at once. Defaults to 250ms.
	OffsetsInterval time.Duration `yaml:"offsets_interval"`
	// SessionTimeout is the time after which the group takes a silent member's partitions away. Brokers refuse values outside their
	// group.min.session.timeout.ms and group.max.session.timeout.ms. Defaults to 10s.
	SessionTimeout time.Duration `yaml:"session_timeout"`
	// SettleTimeout is what running handlers get to finish when a rebalance takes their partition. It holds up the whole group, so it is
	// at most 5s. Defaults to 2s.
	SettleTimeout time.Duration `yaml:"settle_timeout"`

	// MaxKeys is, for bindings with keys: kafka, the largest number of keys of one partition in memory, about 150 bytes each. A partition that has
	// as many waits until some expire. Defaults to 2000000.
	MaxKeys int `yaml:"max_keys"`

	TLS  TLSConfig  `yaml:"tls"`
	SASL SASLConfig `yaml:"sasl"`

	// Dial, for programs that open the adapter themselves, makes its connections: through a tunnel, say. TLS goes on top. Nil dials TCP.
	Dial func(network, addr string) (net.Conn, error) `yaml:"-"`
}

// TopicConfig is what a logical topic is in the cluster.
type TopicConfig struct {
	// Name is the topic's name in the cluster. Defaults to the logical name.
	Name string `yaml:"name"`
}

const (
	defaultWindow  = 256
	maxWindow      = 4096
	defaultMaxKeys = 2_000_000
	recordOverhead = 64 << 10 // room for metadata, key and framing beside the payload
)

// defaults returns the configuration before anything is decoded into it.
func defaults() Config {
	return Config{
		Version:         "2.8.0",
		Topology:        TopologyDeclare,
		Partitions:      6,
		Replication:     -1,
		Window:          defaultWindow,
		OffsetsInterval: 250 * time.Millisecond,
		SessionTimeout:  10 * time.Second,
		SettleTimeout:   2 * time.Second,
		MaxKeys:         defaultMaxKeys,
	}
}

var (
	topicPattern = regexp.MustCompile(`^[A-Za-z0-9._-]{1,249}$`)
	groupPattern = regexp.MustCompile(`^[A-Za-z0-9._-]{1,100}$`)
)

// Validate reports all problems at once, each with the key that is wrong and what to do.
func (c Config) Validate() error {
	return errors.Join(c.validateCluster(), c.validateTopology(), c.validateNames(), c.validateConsuming(), c.TLS.validate(), c.SASL.validate())
}

func (c Config) validateCluster() error {
	var errs []error
	if len(c.Brokers) == 0 {
		errs = append(errs, errors.New("kafka: brokers is empty: name at least one, as host:port"))
	}
	for i, addr := range c.Brokers {
		if _, port, err := net.SplitHostPort(addr); err != nil || port == "" {
			errs = append(errs, fmt.Errorf("kafka: brokers[%d] is not host:port", i))
		}
	}
	if version, err := sarama.ParseKafkaVersion(c.Version); err != nil || !version.IsAtLeast(sarama.V2_1_0_0) {
		errs = append(errs, fmt.Errorf("kafka: version %q is not a Kafka version from 2.1.0 on", c.Version))
	}
	return errors.Join(errs...)
}

func (c Config) validateTopology() error {
	var errs []error
	if !slices.Contains([]string{TopologyDeclare, TopologyVerify, TopologyOff}, c.Topology) {
		errs = append(errs, fmt.Errorf("kafka: topology %q is none of declare, verify, off", c.Topology))
	}
	if c.Partitions < 1 {
		errs = append(errs, fmt.Errorf("kafka: partitions is %d, at least 1 is needed", c.Partitions))
	}
	if c.Replication == 0 || c.Replication < -1 {
		errs = append(errs, fmt.Errorf("kafka: replication is %d: give the number of copies, or -1 for the cluster's default", c.Replication))
	}
	if c.MinInsyncReplicas < 0 || c.Replication > 0 && c.MinInsyncReplicas > int(c.Replication) {
		errs = append(errs, fmt.Errorf("kafka: min_insync_replicas is %d: it must lie between 0 and replication", c.MinInsyncReplicas))
	}
	return errors.Join(errs...)
}

func (c Config) validateNames() error {
	var errs []error
	logicalOf := map[string]string{}
	for logical, topic := range c.Topics {
		if err := envelope.ValidateTopic(logical); err != nil {
			errs = append(errs, fmt.Errorf("kafka: topics: %w", err))
		}
		name := c.physicalTopic(logical)
		if !topicPattern.MatchString(topic.Name) && topic.Name != "" || name == "." || name == ".." {
			errs = append(errs, fmt.Errorf("kafka: topics.%s.name %q: letters, digits, '.', '_' and '-' are allowed, at most 249", logical, topic.Name))
		}
		if other, taken := logicalOf[name]; taken {
			errs = append(errs, fmt.Errorf("kafka: topics: %s and %s both have the name %q: give each its own", min(logical, other), max(logical, other), name))
		}
		logicalOf[name] = logical
	}
	for group, name := range c.Groups {
		if name == "" || len(name) > 255 {
			errs = append(errs, fmt.Errorf("kafka: groups.%s: the name of a consumer group has 1 to 255 characters", group))
		}
	}
	return errors.Join(errs...)
}

func (c Config) validateConsuming() error {
	var errs []error
	if c.Window < 2 || c.Window > maxWindow {
		errs = append(errs, fmt.Errorf("kafka: window is %d, it must lie between 2 and %d", c.Window, maxWindow))
	}
	if c.MaxMessageBytes < 0 {
		errs = append(errs, errors.New("kafka: max_message_bytes is negative"))
	}
	if c.MaxKeys < 0 {
		errs = append(errs, errors.New("kafka: max_keys is negative"))
	}
	for _, d := range []struct {
		name        string
		value       time.Duration
		least, most time.Duration
	}{
		{"offsets_interval", c.OffsetsInterval, time.Millisecond, time.Minute},
		{"session_timeout", c.SessionTimeout, time.Second, 30 * time.Minute},
		{"settle_timeout", c.SettleTimeout, 0, maxSettleTimeout},
	} {
		if d.value < d.least || d.value > d.most {
			errs = append(errs, fmt.Errorf("kafka: %s is %s, it must lie between %s and %s", d.name, d.value, d.least, d.most))
		}
	}
	return errors.Join(errs...)
}

// physicalTopic returns the cluster's name of a logical topic.
func (c Config) physicalTopic(logical string) string {
	if name := c.Topics[logical].Name; name != "" {
		return name
	}
	return logical
}

// physicalGroup returns the cluster's name of a consumer group.
func (c Config) physicalGroup(group string) string {
	if name := c.Groups[group]; name != "" {
		return name
	}
	return group
}
