package sqsbroker

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/oncemill/oncemill/internal/awsconf"
)

// Name is the broker's name, in Factory and in envelope.Delivery.
const Name = "sqs"

// Ways to treat the topology.
const (
	Declare = "declare"
	Verify  = "verify"
	Off     = "off"
)

// Config is the adapter's configuration. Credentials are found as every program of Amazon's SDK finds them: variables of the
// environment, the shared files, the role of the container or machine.
type Config struct {
	// Region is the AWS region. Where it is not set, the SDK's own settings count (AWS_REGION, the shared files).
	Region string `yaml:"region"`
	// Endpoint is the URL of the service where it is not the region's own: a VPC endpoint, an emulator.
	Endpoint string `yaml:"endpoint"`
	// Profile is a profile of the SDK's shared files.
	Profile string `yaml:"profile"`
	// Prefix begins the name of each queue, so that several environments share an account. At most 14 letters, digits, '_' and '-'. Defaults to "om-".
	Prefix string `yaml:"prefix"`
	// Topology is declare (make what is missing), verify (fail when it is missing), or off. Defaults to declare.
	Topology string `yaml:"topology"`
	// Topics gives the queues of topics that operators named. The groups that stand here are then all groups of the topic.
	Topics map[string]Topic `yaml:"topics"`
	// Visibility is how long a message of a dead process waits for its redelivery. A slow handler needs no longer one: a living process
	// keeps what it holds. Whole seconds, 2s to 12h, at least twice Wait. Defaults to 30s.
	Visibility time.Duration `yaml:"visibility"`
	// Wait is how long a request waits for messages, and so how long an idle subscriber takes to stop. Longer is cheaper. Whole
	// seconds, 1s to 20s. Defaults to 3s.
	Wait time.Duration `yaml:"wait"`
	// Receivers is how many requests for messages a busy subscriber has at once; each brings 10 at most. Defaults to 4.
	Receivers int `yaml:"receivers"`
	// Retention is how long a new queue keeps a message. One that nobody settled within it is lost. 1m to 336h. Defaults to 168h.
	Retention time.Duration `yaml:"retention"`
	// HighThroughput makes new queues with deduplication and throughput by message group. Defaults to true.
	HighThroughput bool `yaml:"high_throughput"`
	// Discover is how long publishers remember which queues a topic has. Declaring another group for a topic that has some takes
	// that long, so that none of its messages is missed. 100ms to 1m. Defaults to 5s.
	Discover time.Duration `yaml:"discover"`
	// CaughtUpAfter is the least time over which the service's approximate counts must say that what stood in the queue at the
	// start is settled. The service takes a minute to be sure. Defaults to 1m.
	CaughtUpAfter time.Duration `yaml:"caught_up_after"`
	// PublishTimeout bounds each publish. Defaults to 30s.
	PublishTimeout time.Duration `yaml:"publish_timeout"`
}

// Topic says where the messages of one topic are.
type Topic struct {
	// Queues are the queues of the topic's groups: names, or URLs of queues of another account.
	Queues map[string]string `yaml:"queues"`
}

func defaults() Config {
	return Config{
		Prefix: "om-", Topology: Declare, Visibility: 30 * time.Second, Wait: 3 * time.Second, Receivers: 4, Retention: 168 * time.Hour,
		HighThroughput: true, Discover: 5 * time.Second, CaughtUpAfter: time.Minute, PublishTimeout: 30 * time.Second,
	}
}

const (
	minVisibility = 2 * time.Second
	maxVisibility = 12 * time.Hour
	maxRetention  = 14 * 24 * time.Hour
)

var (
	prefixes   = regexp.MustCompile(`^[A-Za-z0-9_-]{0,14}$`)
	queueNames = regexp.MustCompile(`^[A-Za-z0-9_-]{1,75}\.fifo$`)
)

// Validate reports all that is wrong, without connecting.
func (c Config) Validate() error {
	var errs []error
	refuse := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	refuse(c.Endpoint != "" && !awsconf.ValidURL(c.Endpoint), "endpoint: write a URL such as https://sqs.eu-central-1.amazonaws.com, without user and password")
	refuse(!prefixes.MatchString(c.Prefix), "prefix %q: at most 14 letters, digits, '_' and '-'", c.Prefix)
	refuse(c.Topology != Declare && c.Topology != Verify && c.Topology != Off, "topology %q: use declare, verify or off", c.Topology)
	refuse(c.Visibility < minVisibility || c.Visibility > maxVisibility || !whole(c.Visibility), "visibility %s: whole seconds, 2s to 12h", c.Visibility)
	refuse(c.Wait < time.Second || c.Wait > 20*time.Second || !whole(c.Wait), "wait %s: whole seconds, 1s to 20s", c.Wait)
	refuse(c.Visibility < 2*c.Wait, "visibility %s: at least twice wait (%s)", c.Visibility, c.Wait)
	refuse(c.Receivers < 1 || c.Receivers > 64, "receivers %d: 1 to 64", c.Receivers)
	refuse(c.Retention < time.Minute || c.Retention > maxRetention || !whole(c.Retention), "retention %s: whole seconds, 1m to 336h", c.Retention)
	refuse(c.Discover < 100*time.Millisecond || c.Discover > time.Minute, "discover %s: 100ms to 1m", c.Discover)
	refuse(c.CaughtUpAfter <= 0, "caught_up_after must be positive")
	refuse(c.PublishTimeout <= 0, "publish_timeout must be positive")
	for topic, t := range c.Topics {
		refuse(len(t.Queues) == 0, "topics.%s: name the queue of each group under queues", topic)
		for group, queue := range t.Queues {
			refuse(!validQueue(queue), "topics.%s.queues.%s: %.100q is neither the name nor the URL of a FIFO queue; both end in .fifo", topic, group, queue)
		}
	}
	return errors.Join(errs...)
}

func whole(d time.Duration) bool { return d%time.Second == 0 }

func validQueue(queue string) bool {
	if isURL(queue) {
		return awsconf.ValidURL(queue) && strings.HasSuffix(queue, ".fifo")
	}
	return queueNames.MatchString(queue)
}

func isURL(queue string) bool { return strings.Contains(queue, "://") }
