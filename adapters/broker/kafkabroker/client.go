package kafkabroker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"

	"github.com/oncemill/oncemill/adapters/broker"
)

const (
	dialTimeout = 5 * time.Second
	// readTimeout bounds how long a silent network stays unnoticed. It must be above rebalanceTimeout: an answer to JoinGroup takes as
	// long as the slowest member.
	readTimeout = 15 * time.Second
	// rebalanceTimeout is what the group waits for a member that does not come back. It must be above what an assignment takes to
	// end: SettleTimeout and the last commit.
	rebalanceTimeout = 12 * time.Second
	maxSettleTimeout = 5 * time.Second
	// fetchWait is how long an idle broker keeps a fetch, and so what shares its connection: heartbeats, joining, leaving.
	fetchWait = 250 * time.Millisecond
	// metadataRefresh bounds how long new partitions of a topic stay unnoticed.
	metadataRefresh = 30 * time.Second
)

// newConfig returns what all clients of the library have in common.
func (c Config) newConfig(opts broker.Options) (*sarama.Config, error) {
	version, err := sarama.ParseKafkaVersion(c.Version)
	if err != nil {
		return nil, fmt.Errorf("kafka: version: %w", err)
	}
	conf := sarama.NewConfig()
	conf.Version = version
	conf.ClientID = c.clientID(opts)
	conf.Net.DialTimeout, conf.Net.ReadTimeout, conf.Net.WriteTimeout = dialTimeout, readTimeout, dialTimeout
	conf.Metadata.Full = false
	conf.Metadata.AllowAutoTopicCreation = false
	conf.Metadata.RefreshFrequency = metadataRefresh
	conf.Metadata.Retry.Max, conf.Metadata.Retry.Backoff = 3, 100*time.Millisecond
	conf.Admin.Timeout = 8 * time.Second
	conf.Consumer.IsolationLevel = sarama.ReadCommitted
	return conf, c.secure(conf, opts)
}

// clientID returns a name that the protocol allows.
func (c Config) clientID(opts broker.Options) string {
	name := c.ClientID
	if name == "" {
		name = opts.ClientName
	}
	name = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r) {
			return r
		}
		return '-'
	}, name)
	if name == "" {
		return "oncemill"
	}
	return name
}

// dialer lets Config.Dial make the library's connections.
type dialer func(network, addr string) (net.Conn, error)

func (d dialer) Dial(network, addr string) (net.Conn, error) { return d(network, addr) }

func (c Config) secure(conf *sarama.Config, opts broker.Options) error {
	dial := c.Dial
	if dial == nil && opts.Dial != nil {
		dial = func(network, addr string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
			defer cancel()
			return opts.Dial(ctx, network, addr)
		}
	}
	if dial != nil {
		conf.Net.Proxy.Enable, conf.Net.Proxy.Dialer = true, dialer(dial)
	}
	if c.TLS.Enabled {
		tlsConfig, err := c.TLS.config()
		if err != nil {
			return err
		}
		conf.Net.TLS.Enable, conf.Net.TLS.Config = true, tlsConfig
	}
	if c.SASL.Mechanism == "" {
		return nil
	}
	password, err := c.SASL.password()
	if err != nil {
		return err
	}
	sasl := &conf.Net.SASL
	sasl.Enable, sasl.User, sasl.Password = true, c.SASL.User, password
	sasl.Mechanism = sarama.SASLMechanism(c.SASL.Mechanism)
	if hash, isScram := map[string]scram.HashGeneratorFcn{saslScramSHA256: scram.SHA256, saslScramSHA512: scram.SHA512}[c.SASL.Mechanism]; isScram {
		// sarama asks for a password; the conversation reads its own.
		sasl.Password = hidden
		sasl.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient {
			return &scramClient{hash: hash, password: c.SASL.password}
		}
	}
	return nil
}

// producerConfig returns the configuration of an idempotent producer.
func (c Config) producerConfig(opts broker.Options) (*sarama.Config, error) {
	conf, err := c.newConfig(opts)
	if err != nil {
		return nil, err
	}
	conf.Net.MaxOpenRequests = 1
	conf.Producer.Idempotent = true
	conf.Producer.RequiredAcks = sarama.WaitForAll
	conf.Producer.Partitioner = sarama.NewMurmur2Partitioner
	conf.Producer.MaxMessageBytes = c.maxMessageBytes(opts)
	conf.Producer.Timeout = 10 * time.Second
	conf.Producer.Retry.Max, conf.Producer.Retry.Backoff = 5, 200*time.Millisecond
	conf.Producer.Return.Successes, conf.Producer.Return.Errors = true, true
	return conf, nil
}

func (c Config) maxMessageBytes(opts broker.Options) int {
	if c.MaxMessageBytes > 0 {
		return c.MaxMessageBytes
	}
	return max(opts.MaxPayload, 0) + recordOverhead
}

// groupConfig returns the configuration of a consumer group's member.
func (c Config) groupConfig(opts broker.Options) (*sarama.Config, error) {
	conf, err := c.newConfig(opts)
	if err != nil {
		return nil, err
	}
	conf.ChannelBufferSize = 16
	conf.Metadata.Retry.Max, conf.Metadata.Retry.Backoff = 12, 250*time.Millisecond // heartbeats outlive a short outage
	conf.Consumer.Return.Errors = true
	conf.Consumer.MaxWaitTime = fetchWait
	conf.Consumer.Retry.Backoff = 500 * time.Millisecond
	conf.Consumer.Offsets.Initial = sarama.OffsetOldest
	conf.Consumer.Offsets.AutoCommit.Enable = false
	group := &conf.Consumer.Group
	group.Session.Timeout = c.SessionTimeout
	group.Heartbeat.Interval = min(3*time.Second, c.SessionTimeout/3)
	group.Rebalance.Timeout = rebalanceTimeout
	group.Rebalance.Retry.Backoff = 500 * time.Millisecond
	group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{sarama.NewBalanceStrategySticky()}
	return conf, nil
}

// probeTopic is a topic that nearly every cluster has. Whether it is there does not matter.
const probeTopic = "__consumer_offsets"

// askAny goes through all addresses of the configuration, or all known brokers, until one answers.
func askAny(client sarama.Client) error {
	err := client.RefreshMetadata(probeTopic)
	for _, answer := range []error{sarama.ErrUnknownTopicOrPartition, sarama.ErrTopicAuthorizationFailed, sarama.ErrLeaderNotAvailable} {
		if errors.Is(err, answer) {
			return nil
		}
	}
	return err
}

// call runs f, which cannot be interrupted, and waits for it at most until ctx ends. The broker waits
// for what is left behind when it closes; the library's own time-outs bound it. f must not write to variables of its caller.
func call[T any](ctx context.Context, b *Broker, f func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	var none T
	if err := ctx.Err(); err != nil {
		return none, err
	}
	done := make(chan result, 1)
	b.mu.Lock()
	if b.finished {
		b.mu.Unlock()
		return none, ErrClosed
	}
	b.calls.Go(func() {
		value, err := f()
		done <- result{value, err}
	})
	b.mu.Unlock()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		return none, ctx.Err()
	}
}

// take is call for what must be given back: what comes when nobody waits for it any more goes to drop.
func take[T any](ctx context.Context, b *Broker, get func() (T, error), drop func(T)) (T, error) {
	var mu sync.Mutex
	var left bool
	var late *T // came, and the caller may not know
	got, err := call(ctx, b, func() (T, error) {
		got, err := get()
		if err != nil {
			return got, err
		}
		mu.Lock()
		defer mu.Unlock()
		if left {
			drop(got)
			return got, ctx.Err()
		}
		late = &got
		return got, nil
	})
	if err != nil {
		mu.Lock()
		defer mu.Unlock()
		left = true
		if late != nil {
			drop(*late)
		}
	}
	return got, err
}

// background runs f; the broker waits for it when it closes.
func (b *Broker) background(f func()) {
	b.mu.Lock()
	finished := b.finished
	if !finished {
		b.calls.Go(f)
	}
	b.mu.Unlock()
	if finished {
		f()
	}
}

// within is call for what has no result.
func (b *Broker) within(ctx context.Context, f func() error) error {
	_, err := call(ctx, b, func() (struct{}, error) { return struct{}{}, f() })
	return err
}

// isMissingTopic reports that the cluster does not know the topic.
func isMissingTopic(err error) bool { return errors.Is(err, sarama.ErrUnknownTopicOrPartition) }
