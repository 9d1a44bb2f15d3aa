package kafkabroker

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"github.com/oncemill/oncemill/adapters/broker"
)

// topicFact is what a topic's configuration says. The zero value is a topic of which nothing is known.
type topicFact struct {
	replicas    int
	minInsync   int
	configKnown bool
	retention   time.Duration // 0: no bound
	segment     time.Duration
}

// read takes what it needs of a topic's configuration.
func (f *topicFact) read(entries []sarama.ConfigEntry) error {
	values := map[string]string{}
	for _, e := range entries {
		values[e.Name] = e.Value
	}
	retention, err1 := milliseconds(values["retention.ms"])
	segment, err2 := milliseconds(values["segment.ms"])
	minInsync, err3 := strconv.Atoi(values["min.insync.replicas"])
	if err := errors.Join(err1, err2, err3); err != nil {
		return fmt.Errorf("reading the topic's configuration: %w", err)
	}
	if retention < 0 || !strings.Contains(values["cleanup.policy"], "delete") {
		retention = 0
	}
	f.retention, f.segment, f.minInsync, f.configKnown = retention, segment, minInsync, true
	return nil
}

// milliseconds parses a time of Kafka's configuration; what is longer than a time.Duration holds has no bound.
func milliseconds(text string) (time.Duration, error) {
	ms, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, err
	}
	if ms < 0 || ms > int64(1<<63-1)/int64(time.Millisecond) {
		return -1, nil
	}
	return time.Duration(ms) * time.Millisecond, nil
}

// longest returns the longest time between two deliveries of one of the topic's records; 0 has no bound.
func (f topicFact) longest() time.Duration {
	if !f.configKnown || f.retention <= 0 || f.segment < 0 || f.retention+f.segment < 0 {
		return 0
	}
	return f.retention + f.segment
}

// topicFacts are the facts of all topics that were declared or subscribed to, by physical name.
type topicFacts struct {
	mu    sync.Mutex
	known map[string]topicFact
}

func newTopicFacts() *topicFacts { return &topicFacts{known: map[string]topicFact{}} }

func (f *topicFacts) set(physical string, fact topicFact) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.known[physical] = fact
}

func (f *topicFacts) all() map[string]topicFact {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.known)
}

// Capabilities says what the cluster promises. The longest redelivery, durability and the caveats are those of the
// topics that were declared or subscribed to so far.
func (b *Broker) Capabilities() broker.Capabilities {
	facts := b.facts.all()
	longest, reason := longestRedelivery(facts)
	return broker.Capabilities{
		Ordering: broker.OrderByKey,
		// A record that the cluster refuses fails alone or with its record batch; records behind it may already be on their way.
		OrderedBatch:      false,
		LongestRedelivery: longest,
		RedeliveryReason:  reason,
		DeliveryCount:     true,
		Durable:           durable(facts),
		Caveats:           caveats(facts),
		Transactions:      transactionLimits(),
	}
}

// transactionLimits are what bounds the promise of keys in Kafka transactions.
func transactionLimits() []string {
	return []string{
		"A second sending of the producer that lands in another partition, because the record key or the number of partitions changed, is not recognised.",
		"A consumer that reads uncommitted records sees those of aborted transactions.",
		"A partition that is idle for longer than the brokers' transactional.id.expiration.ms (7 days by default) is fenced by the group's generation alone.",
		"The topic of keys, GROUP-keys, must be compacted and written by nobody else; with one replica it is lost with its machine.",
	}
}

func longestRedelivery(facts map[string]topicFact) (time.Duration, string) {
	var longest time.Duration
	for _, physical := range slices.Sorted(maps.Keys(facts)) {
		of := facts[physical].longest()
		if of == 0 {
			return 0, fmt.Sprintf("topic %s keeps records without a bound of time (retention.ms, cleanup.policy), or its configuration cannot be read", physical)
		}
		longest = max(longest, of)
	}
	if longest == 0 {
		return 0, "no topic is known yet"
	}
	return longest, "the topic's retention.ms plus a segment (segment.ms)"
}

func durable(facts map[string]topicFact) bool {
	for _, fact := range facts {
		if fact.replicas < 2 || fact.minInsync < 2 {
			return false
		}
	}
	return len(facts) > 0
}

func caveats(facts map[string]topicFact) []string {
	var single, thin []string
	for _, physical := range slices.Sorted(maps.Keys(facts)) {
		switch fact := facts[physical]; {
		case fact.replicas < 2:
			single = append(single, physical)
		case fact.minInsync < 2:
			thin = append(thin, physical)
		}
	}
	var texts []string
	if len(single) > 0 {
		texts = append(texts, "Kafka does not flush each write to disk, and these topics have one replica: a crash of the broker's machine can lose confirmed messages: "+strings.Join(single, ", ")+".")
	}
	if len(thin) > 0 {
		texts = append(texts, "min.insync.replicas of these topics is 1 or unknown: a message may be confirmed that only one machine has: "+strings.Join(thin, ", ")+".")
	}
	return texts
}
