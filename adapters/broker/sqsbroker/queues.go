package sqsbroker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/oncemill/oncemill/middleware/outbox"
)

// listWithin bounds how long a new queue may take to be listed.
const listWithin = 90 * time.Second

// queues knows which queues a topic has: one for each group. Safe for concurrent use.
type queues struct {
	cfg    Config
	client *sqs.Client

	mu        sync.Mutex
	topics    map[string]listed
	urls      map[string]string // by name
	retention time.Duration     // the longest that was seen
}

// listed is what a topic's list said.
type listed struct {
	urls  []string
	until time.Time
}

func newQueues(cfg Config, client *sqs.Client) *queues {
	return &queues{cfg: cfg, client: client, topics: map[string]listed{}, urls: map[string]string{}}
}

// of returns the URLs of the topic's queues, by which a message reaches all of its groups. No queue at all is outbox.ErrUnroutable.
func (q *queues) of(ctx context.Context, topic string) ([]string, error) {
	if t, named := q.cfg.Topics[topic]; named {
		urls := make([]string, 0, len(t.Queues))
		for group := range t.Queues {
			url, err := q.url(ctx, topic, group)
			if err != nil {
				return nil, fmt.Errorf("queue of %.100q: %w", group, err)
			}
			urls = append(urls, url)
		}
		return urls, nil
	}
	q.mu.Lock()
	known := q.topics[topic]
	q.mu.Unlock()
	if time.Now().Before(known.until) {
		return known.urls, nil
	}
	urls, err := q.list(ctx, topic)
	if err != nil {
		return nil, err
	}
	if len(urls) == 0 {
		return nil, fmt.Errorf("%w: topic %s has no queue named %s…", outbox.ErrUnroutable, topic, QueuePrefix(q.cfg.Prefix, topic))
	}
	return urls, nil
}

// list asks for the topic's queues. What is not empty is remembered for a while from when it was asked.
func (q *queues) list(ctx context.Context, topic string) ([]string, error) {
	asked := time.Now()
	in := &sqs.ListQueuesInput{QueueNamePrefix: aws.String(QueuePrefix(q.cfg.Prefix, topic)), MaxResults: aws.Int32(1000)}
	var urls []string
	for {
		out, err := q.client.ListQueues(ctx, in)
		if err != nil {
			return nil, fmt.Errorf("list the queues of %s: %w", topic, classify(err))
		}
		urls = append(urls, out.QueueUrls...)
		if in.NextToken = out.NextToken; aws.ToString(in.NextToken) == "" {
			break
		}
	}
	urls = slices.DeleteFunc(urls, func(url string) bool { return !strings.HasSuffix(url, ".fifo") })
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(urls) == 0 {
		delete(q.topics, topic)
	} else {
		q.topics[topic] = listed{urls: urls, until: asked.Add(q.cfg.Discover)}
	}
	return urls, nil
}

// forget makes the next publish ask again: a queue that was known is gone.
func (q *queues) forget(topic string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.topics, topic)
	clear(q.urls)
}

// name is the name or URL of a group's queue.
func (q *queues) name(topic, group string) (string, error) {
	t, named := q.cfg.Topics[topic]
	if !named {
		return QueueName(q.cfg.Prefix, topic, group), nil
	}
	queue, known := t.Queues[group]
	if !known {
		return "", fmt.Errorf("sqs: topic %s is configured, but without group %.100q: name its queue under brokers.sqs.topics", topic, group)
	}
	return queue, nil
}

// url returns the URL of a group's queue; errNoQueue where there is none.
func (q *queues) url(ctx context.Context, topic, group string) (string, error) {
	name, err := q.name(topic, group)
	if err != nil || isURL(name) {
		return name, err
	}
	q.mu.Lock()
	url, known := q.urls[name]
	q.mu.Unlock()
	if known {
		return url, nil
	}
	out, err := q.client.GetQueueUrl(ctx, &sqs.GetQueueUrlInput{QueueName: aws.String(name)})
	switch {
	case noQueue(err):
		return "", fmt.Errorf("%w: %s", errNoQueue, name)
	case err != nil:
		return "", fmt.Errorf("look up queue %s: %w", name, classify(err))
	}
	q.mu.Lock()
	q.urls[name] = aws.ToString(out.QueueUrl)
	q.mu.Unlock()
	return aws.ToString(out.QueueUrl), nil
}

// prepare makes, or verifies, the queues of the groups. When it returns, every message that is published from then on, by any process, reaches them.
func (q *queues) prepare(ctx context.Context, topic string, groups []string) error {
	var made []string
	for _, group := range groups {
		url, err := q.url(ctx, topic, group)
		switch {
		case errors.Is(err, errNoQueue) && q.cfg.Topology == Declare:
			if url, err = q.make(ctx, topic, group); err != nil {
				return err
			}
			made = append(made, url)
		case errors.Is(err, errNoQueue) && q.cfg.Topology == Off:
			continue
		case err != nil:
			return err
		}
		if q.cfg.Topology != Off {
			if err := q.check(ctx, url); err != nil {
				return err
			}
		}
	}
	if _, named := q.cfg.Topics[topic]; len(made) == 0 || named {
		return nil
	}
	return q.settle(ctx, topic, made)
}

// settle waits until the new queues are listed and, where the topic had others, until every publisher has forgotten a list without them.
func (q *queues) settle(ctx context.Context, topic string, made []string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, listWithin, fmt.Errorf("new queues of %s are not listed after %s", topic, listWithin))
	defer cancel()
	for {
		urls, err := q.list(ctx, topic)
		missing := slices.ContainsFunc(made, func(url string) bool { return !slices.Contains(urls, url) })
		switch {
		case err == nil && !missing && len(urls) == len(made):
			return nil
		case err == nil && !missing:
			return sleep(ctx, q.cfg.Discover)
		}
		if sleep(ctx, 500*time.Millisecond) != nil {
			return errors.Join(context.Cause(ctx), err)
		}
	}
}

func (q *queues) make(ctx context.Context, topic, group string) (string, error) {
	name, err := q.name(topic, group)
	if err != nil {
		return "", err
	}
	attributes := map[string]string{
		string(types.QueueAttributeNameFifoQueue):              "true",
		string(types.QueueAttributeNameMessageRetentionPeriod): seconds(q.cfg.Retention),
		string(types.QueueAttributeNameVisibilityTimeout):      seconds(q.cfg.Visibility),
	}
	if q.cfg.HighThroughput {
		attributes[string(types.QueueAttributeNameDeduplicationScope)] = "messageGroup"
		attributes[string(types.QueueAttributeNameFifoThroughputLimit)] = "perMessageGroupId"
	}
	out, err := q.client.CreateQueue(ctx, &sqs.CreateQueueInput{QueueName: aws.String(name), Attributes: attributes})
	var exists *types.QueueNameExists
	switch {
	case errors.As(err, &exists): // made meanwhile, by a process with another configuration
		return q.url(ctx, topic, group)
	case err != nil:
		return "", fmt.Errorf("make queue %s: %w", name, classify(err))
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.urls[name] = aws.ToString(out.QueueUrl)
	return aws.ToString(out.QueueUrl), nil
}

// check refuses a queue that keeps no order, and notes how long the queue keeps messages.
func (q *queues) check(ctx context.Context, url string) error {
	out, err := q.client.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{QueueUrl: aws.String(url), AttributeNames: []types.QueueAttributeName{
		types.QueueAttributeNameFifoQueue, types.QueueAttributeNameMessageRetentionPeriod,
	}})
	if err != nil {
		return fmt.Errorf("look at queue %s: %w", url, classify(err))
	}
	if out.Attributes[string(types.QueueAttributeNameFifoQueue)] != "true" {
		return fmt.Errorf("sqs: queue %s is no FIFO queue: make another one, whose name ends in .fifo", url)
	}
	n, err := strconv.Atoi(out.Attributes[string(types.QueueAttributeNameMessageRetentionPeriod)])
	if err != nil {
		return nil //nolint:nilerr // capabilities then say the longest that is possible
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.retention = max(q.retention, time.Duration(n)*time.Second)
	return nil
}

// longest is how long a message may stay in a queue.
func (q *queues) longest() time.Duration {
	if q.cfg.Topology != Declare {
		return maxRetention
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return max(q.retention, q.cfg.Retention)
}

func seconds(d time.Duration) string { return strconv.Itoa(int(d / time.Second)) }

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
