package rabbitbroker_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/adapters/broker/rabbitbroker"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/envelope"
)

// The connection breaks after the handlers succeeded and before their acks pass: all comes again,
// marked, consuming resumes within 15 seconds by itself, with one consumer.
func TestF004AckLostWithConnection(t *testing.T) {
	t.Parallel()
	for _, queueType := range []string{rabbitbroker.Quorum, rabbitbroker.Classic} {
		t.Run(queueType, func(t *testing.T) {
			t.Parallel()
			server := testenv.RabbitMQ(t)
			u, err := url.Parse(server.URL)
			require.NoError(t, err)
			proxy := testenv.Proxy(t, u.Host)
			u.Host = proxy.Addr
			b := open(t, config(u.String(), queueType))
			topic := testenv.Name(t, "lost")
			declare(t, b, topic, "g")
			msgs := batch(10)
			require.NoError(t, b.Publisher().Publish(topic, msgs...))
			sub, got := subscribe(t, b, broker.Subscription{Topic: topic, Group: "g", InFlight: 10})

			seen := map[string]int{}
			sessions := map[string]bool{}
			handled := make([]*message.Message, len(msgs))
			for i := range msgs {
				handled[i] = next(t, got)
				seen[handled[i].UUID]++
				sessions[envelope.DeliveryFrom(handled[i].Context()).Session] = true
			}
			proxy.Pause()
			for _, msg := range handled {
				require.True(t, msg.Ack())
				<-msg.Context().Done() // the ack is written, into the paused network
			}
			proxy.Cut()
			proxy.Resume()
			proxy.Restore()
			began := time.Now()
			for range msgs {
				msg := next(t, got)
				seen[msg.UUID]++
				require.True(t, envelope.DeliveryFrom(msg.Context()).Redelivered)
				require.False(t, sessions[envelope.DeliveryFrom(msg.Context()).Session], "a new connection is a new session")
				require.True(t, msg.Ack())
			}
			require.Less(t, time.Since(began), 15*time.Second)
			for id, times := range seen {
				require.Equal(t, 2, times, id)
			}
			require.NoError(t, sub.Consuming())
			eventually(t, func() error {
				if q := queue(t, server, topic+":g"); q.Consumers != 1 || q.Ready+q.Unacked != 0 {
					return fmt.Errorf("%d consumers, %d ready, %d unacked", q.Consumers, q.Ready, q.Unacked)
				}
				return nil
			})
		})
	}
}

// An operator closes every connection: contexts of what is in flight end, late acks are quiet, publishing and consuming go on.
func TestForcedClose(t *testing.T) {
	t.Parallel()
	server := testenv.RabbitMQ(t)
	b := open(t, config(server.URL, rabbitbroker.Quorum))
	topic := testenv.Name(t, "forced")
	declare(t, b, topic, "g")
	sub, got := subscribe(t, b, broker.Subscription{Topic: topic, Group: "g"})
	for round := range 3 {
		require.NoError(t, b.Publisher().Publish(topic, newMessage("p")), "round %d", round)
		held := next(t, got)
		cut := 0
		eventually(t, func() error {
			if cut += cutConnections(t, server, " consume"); cut == 0 {
				return fmt.Errorf("the connection is not listed yet")
			}
			return nil
		})
		select {
		case <-held.Context().Done():
		case <-time.After(patience):
			require.FailNow(t, "the message's context survives its connection")
		}
		require.True(t, held.Ack())
		again := next(t, got)
		require.Equal(t, held.UUID, again.UUID)
		require.True(t, again.Ack())
		cutConnections(t, server, " publish")
		eventually(t, func() error { return b.Ping(t.Context()) })
	}
	eventually(t, sub.Consuming)
}

// The queue is deleted under the consumer: no empty message reaches a handler, and the queue is made again.
func TestDeletedQueueGivesNoGhost(t *testing.T) {
	t.Parallel()
	for _, queueType := range []string{rabbitbroker.Quorum, rabbitbroker.Classic} {
		t.Run(queueType, func(t *testing.T) {
			t.Parallel()
			server := testenv.RabbitMQ(t)
			b := open(t, config(server.URL, queueType))
			topic := testenv.Name(t, "ghost")
			declare(t, b, topic, "g")
			sub, got := subscribe(t, b, broker.Subscription{Topic: topic, Group: "g"})
			for range 3 {
				_, err := channel(t, server.URL).QueueDelete(topic+":g", false, false, false)
				require.NoError(t, err)
				// Not made again before: RabbitMQ 3.10 loses messages of a quorum queue that is made while it is being deleted.
				require.Eventually(t, func() bool { return sub.Consuming() != nil }, patience, time.Millisecond)
				eventually(t, sub.Consuming)
				require.NoError(t, b.Publisher().Publish(topic, newMessage("real")))
				msg := next(t, got)
				require.Equal(t, "real", string(msg.Payload))
				require.True(t, msg.Ack())
			}
		})
	}
}

// lines is a log that tests read.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// Passwords appear in no error and no log; the host does.
func TestF083PasswordsStayOut(t *testing.T) {
	t.Parallel()
	server := testenv.RabbitMQ(t)
	u, err := url.Parse(server.URL)
	require.NoError(t, err)
	const password = "s3cr3t-Zq!/?#@ä"
	secrets := []string{"s3cr3t", "Zq!", url.QueryEscape(password), url.PathEscape(password)}

	wrong := *u
	wrong.User = url.UserPassword("guest", password)
	unreachable := wrong
	unreachable.Host = "127.0.0.1:1"
	nowhere := wrong
	nowhere.Host = "no-such-host.invalid:5672"
	urls := map[string]string{
		"wrong password": wrong.String(),
		"wrong port":     unreachable.String(),
		"wrong host":     nowhere.String(),
	}
	for i, raw := range []string{
		"amqp://guest:s3cr3t-Zq!/x@" + u.Host + "/", "amqp://guest:123s3cr3t?x@" + u.Host + "/", "amqp://guest:123#s3cr3t@" + u.Host + "/",
		"amqp://guest:%zzs3cr3t@" + u.Host + "/", "http://guest:s3cr3t@" + u.Host + "/", "amqp://guest:s3cr3t Zq!@" + u.Host, "amqp://s3cr3t:123/@" + u.Host,
		"guest:s3cr3t@" + u.Host,
	} {
		urls[fmt.Sprintf("malformed %d", i)] = raw
	}
	var log lines
	options := broker.Options{Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})), ClientName: "test"}
	for name, raw := range urls {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		_, err := rabbitbroker.Open(ctx, config(raw, rabbitbroker.Quorum), options)
		cancel()
		require.Error(t, err, name)
		file := filepath.Join(t.TempDir(), "url")
		require.NoError(t, os.WriteFile(file, []byte(raw), 0o600))
		_, fileErr := rabbitbroker.Open(t.Context(), defaults(func(c *rabbitbroker.Config) { c.URLFile = file }), options)
		require.Error(t, fileErr, name)
		for _, secret := range secrets {
			for _, text := range []string{err.Error(), fileErr.Error(), fmt.Sprintf("%+v", err), log.String()} {
				require.NotContains(t, text, secret, name)
			}
		}
		if strings.HasPrefix(name, "wrong") {
			parsed, parseErr := url.Parse(raw)
			require.NoError(t, parseErr)
			require.ErrorContains(t, err, parsed.Host, name)
		}
	}
}

// A password that changes in its file is used by the next connection.
func TestURLFileIsReadAgain(t *testing.T) {
	t.Parallel()
	server := testenv.RabbitMQ(t)
	u, err := url.Parse(server.URL)
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "url")
	proxy := testenv.Proxy(t, u.Host)
	first := *u
	first.Host = proxy.Addr
	require.NoError(t, os.WriteFile(file, []byte(first.String()+"\n"), 0o600))
	b := open(t, defaults(func(c *rabbitbroker.Config) { c.URLFile = file }))
	topic := testenv.Name(t, "file")
	declare(t, b, topic, "g")
	_, got := subscribe(t, b, broker.Subscription{Topic: topic, Group: "g"})

	proxy.Cut() // for good: the old address leads nowhere
	require.NoError(t, os.WriteFile(file, []byte(u.String()), 0o600))
	eventually(t, func() error { return b.Publisher().Publish(topic, newMessage("p")) })
	require.True(t, next(t, got).Ack())
}
