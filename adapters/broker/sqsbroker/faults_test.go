package sqsbroker_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/adapters/broker/sqsbroker"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/outbox"
)

// queue is a declared topic with one group.
type queue struct {
	t             *testing.T
	endpoint      string
	prefix, topic string
}

func newQueue(t *testing.T) queue {
	return queue{t: t, endpoint: testenv.SQS(t).Endpoint, prefix: "f" + uuid.NewString()[:8] + "-", topic: "orders"}
}

func (q queue) open(endpoint string) broker.Broker {
	q.t.Helper()
	b := open(q.t, config(endpoint, q.prefix, nil))
	require.NoError(q.t, b.Declare(q.t.Context(), q.topic, []broker.Subscription{{Topic: q.topic, Group: "g"}}))
	return b
}

func (q queue) subscribe(b broker.Broker) <-chan *message.Message {
	q.t.Helper()
	sub, err := b.Subscriber(broker.Subscription{Topic: q.topic, Group: "g"})
	require.NoError(q.t, err)
	msgs, err := sub.Subscribe(q.t.Context(), q.topic)
	require.NoError(q.t, err)
	return msgs
}

func next(t *testing.T, msgs <-chan *message.Message) *message.Message {
	t.Helper()
	select {
	case msg := <-msgs:
		require.NotNil(t, msg)
		return msg
	case <-time.After(patience):
		require.FailNow(t, "no message came")
		return nil
	}
}

func silent(t *testing.T, msgs <-chan *message.Message, d time.Duration, why string) {
	t.Helper()
	select {
	case msg := <-msgs:
		require.Nil(t, msg, why)
	case <-time.After(d):
	}
}

// A handler that works for longer than the visibility keeps its message: no other replica gets it.
func TestSlowHandlerKeepsItsMessage(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	one, two := q.open(q.endpoint), q.open(q.endpoint)
	require.NoError(t, one.Publisher().Publish(q.topic, message.NewMessage(uuid.NewString(), []byte("slow"))))
	msg := next(t, q.subscribe(one))
	others := q.subscribe(two)
	silent(t, others, 15*time.Second, "the message came to another replica while its handler worked")
	require.NoError(t, msg.Context().Err())
	require.True(t, msg.Ack())
	<-msg.Context().Done()
	silent(t, others, 2*time.Second, "the message came again though it was acked")
}

// What cannot be extended is given up before somebody else has it: its context ends, and its late ack removes nothing.
func TestAckAfterVisibilityRanOut(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	proxied, proxy := throughProxy(t, q.endpoint)
	cut := q.open(proxied)
	require.NoError(t, cut.Publisher().Publish(q.topic, message.NewMessage(uuid.NewString(), []byte("p"))))
	msg := next(t, q.subscribe(cut))
	proxy.Cut()
	select {
	case <-msg.Context().Done():
	case <-time.After(patience):
		require.FailNow(t, "the context stays alive though the message is not ours any more")
	}
	require.True(t, msg.Ack())
	proxy.Restore()
	again := next(t, q.subscribe(q.open(q.endpoint)))
	require.Equal(t, msg.UUID, again.UUID)
	require.True(t, envelope.DeliveryFrom(again.Context()).Redelivered)
	require.True(t, again.Ack())
}

// failing answers some requests of an operation itself, saying that the service failed at each entry, and forwards all others.
func failing(t *testing.T, endpoint, operation string, times int32) (string, *atomic.Int32) {
	t.Helper()
	upstream, err := url.Parse(endpoint)
	require.NoError(t, err)
	forward := httputil.NewSingleHostReverseProxy(upstream)
	var failed atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.Header.Get("X-Amz-Target"), "."+operation) || failed.Load() >= times {
			forward.ServeHTTP(w, r)
			return
		}
		failed.Add(1)
		body, _ := io.ReadAll(r.Body)
		var in struct{ Entries []struct{ Id string } } //nolint:revive // the service's name
		_ = json.NewDecoder(bytes.NewReader(body)).Decode(&in)
		entries := []map[string]any{}
		for _, e := range in.Entries {
			entries = append(entries, map[string]any{"Id": e.Id, "Code": "InternalError", "SenderFault": false})
		}
		w.Header().Set("Content-Type", "application/x-amz-json-1.0")
		_ = json.NewEncoder(w).Encode(map[string]any{"Successful": []any{}, "Failed": entries})
	}))
	t.Cleanup(server.Close)
	return server.URL, &failed
}

// Entries of a batch delete that the service fails at are deleted in the end.
func TestFailedDeletesAreSentAgain(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	endpoint, failed := failing(t, q.endpoint, "DeleteMessageBatch", 3)
	b := q.open(endpoint)
	require.NoError(t, b.Publisher().Publish(q.topic, message.NewMessage(uuid.NewString(), []byte("p"))))
	msgs := q.subscribe(b)
	msg := next(t, msgs)
	require.True(t, msg.Ack())
	select {
	case <-msg.Context().Done():
	case <-time.After(patience):
		require.FailNow(t, "the settlement never reached the service")
	}
	require.EqualValues(t, 3, failed.Load())
	silent(t, msgs, 9*time.Second, "it was acked, but it is still in the queue")
}

// Entries of a batch send that the service fails at are sent again; what it goes on failing at is an error that says nothing about the message.
func TestFailedSendsAreSentAgain(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	endpoint, _ := failing(t, q.endpoint, "SendMessageBatch", 2)
	require.NoError(t, q.open(endpoint).Publisher().Publish(q.topic, message.NewMessage(uuid.NewString(), []byte("p"))))
	msgs := q.subscribe(q.open(q.endpoint))
	require.True(t, next(t, msgs).Ack())

	endpoint, _ = failing(t, q.endpoint, "SendMessageBatch", 1000)
	err := q.open(endpoint).Publisher().Publish(q.topic, message.NewMessage(uuid.NewString(), []byte("p")))
	require.ErrorIs(t, err, outbox.ErrUnavailable)
}

// F070: the window belongs to the sending, not to the operation. A publish whose answer was lost is one message; the same key sent again
// on purpose is another, and comes.
func TestF070DeliberateSendingIsNotSwallowed(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	b := q.open(q.endpoint)
	first := message.NewMessage(uuid.NewString(), []byte("p"))
	first.Metadata.Set(envelope.KeyHeader, "order-1")
	for range 3 {
		require.NoError(t, b.Publisher().Publish(q.topic, first))
	}
	second := message.NewMessage(uuid.NewString(), []byte("p"))
	second.Metadata.Set(envelope.KeyHeader, "order-1")
	require.NoError(t, b.Publisher().Publish(q.topic, second))
	msgs := q.subscribe(b)
	got := []*message.Message{next(t, msgs), next(t, msgs)}
	require.ElementsMatch(t, []string{first.UUID, second.UUID}, []string{got[0].UUID, got[1].UUID})
	silent(t, msgs, 2*time.Second, "a repeated publish was doubled")
	for _, msg := range got {
		require.True(t, msg.Ack())
	}
}

// A topic that nobody listens to refuses its messages, and a group that was added is missed by no publisher.
func TestNoGroupIsMissed(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	lonely := open(t, config(q.endpoint, q.prefix, nil))
	require.ErrorIs(t, lonely.Publisher().Publish("nobody", message.NewMessage(uuid.NewString(), nil)), outbox.ErrUnroutable)

	publishing, declaring := q.open(q.endpoint), open(t, config(q.endpoint, q.prefix, nil))
	require.NoError(t, publishing.Publisher().Publish(q.topic, message.NewMessage(uuid.NewString(), []byte("before")))) // it knows one group now
	require.NoError(t, declaring.Declare(t.Context(), q.topic, []broker.Subscription{{Topic: q.topic, Group: "new"}}))
	require.NoError(t, publishing.Publisher().Publish(q.topic, message.NewMessage(uuid.NewString(), []byte("after"))))
	sub, err := declaring.Subscriber(broker.Subscription{Topic: q.topic, Group: "new"})
	require.NoError(t, err)
	msgs, err := sub.Subscribe(t.Context(), q.topic)
	require.NoError(t, err)
	require.Equal(t, "after", string(next(t, msgs).Payload))
}

// A foreign producer's message group is its order; its deduplication id its identity.
func TestForeignGroupIsAnOrderingKey(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	b := q.open(q.endpoint)
	_, err := plain(t).SendMessage(t.Context(), &sqs.SendMessageInput{
		QueueUrl: aws.String(queuesOf(t, plain(t), q.prefix, q.topic)[0]), MessageBody: aws.String("p"),
		MessageGroupId: aws.String("customer-7"), MessageDeduplicationId: aws.String("order-9"),
	})
	require.NoError(t, err)
	msg := next(t, q.subscribe(b))
	require.Equal(t, message.Metadata{envelope.OrderingKeyHeader: "customer-7"}, msg.Metadata)
	require.Equal(t, "order-9", envelope.DeliveryFrom(msg.Context()).MessageID)
	require.True(t, msg.Ack())
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	for says, change := range map[string]func(*sqsbroker.Config){
		"endpoint":                 func(c *sqsbroker.Config) { c.Endpoint = "https://user:secret@example.com" },
		"prefix":                   func(c *sqsbroker.Config) { c.Prefix = "a.b" },
		"topology":                 func(c *sqsbroker.Config) { c.Topology = "make" },
		"whole seconds, 2s to 12h": func(c *sqsbroker.Config) { c.Visibility = 13 * time.Hour },
		"at least twice wait":      func(c *sqsbroker.Config) { c.Wait = 20 * time.Second },
		"retention":                func(c *sqsbroker.Config) { c.Retention = 400 * time.Hour },
		"both end in .fifo": func(c *sqsbroker.Config) {
			c.Topics = map[string]sqsbroker.Topic{"t": {Queues: map[string]string{"g": "q"}}}
		},
		"name the queue of each gr": func(c *sqsbroker.Config) { c.Topics = map[string]sqsbroker.Topic{"t": {}} },
	} {
		err := config("http://127.0.0.1:1", "p-", change).Validate()
		require.ErrorContains(t, err, says)
		require.NotContains(t, err.Error(), "secret")
	}
	require.NoError(t, config("http://127.0.0.1:1", "p-", nil).Validate())
}
