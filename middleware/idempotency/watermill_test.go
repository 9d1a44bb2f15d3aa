package idempotency_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/idempotency"
	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/parking"
)

// newChannel is Watermill's in-process broker; Publish returns when every subscriber has acked.
func newChannel(t *testing.T) *gochannel.GoChannel {
	c := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{})
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// runRouter runs a plain Watermill router until the end of the test.
func runRouter(t *testing.T, setUp func(r *message.Router)) {
	t.Helper()
	r, err := message.NewRouter(message.RouterConfig{CloseTimeout: patience}, watermill.NopLogger{})
	require.NoError(t, err)
	setUp(r)
	ended := make(chan error, 1)
	go func() { ended <- r.Run(context.Background()) }()
	await(t, r.Running(), "the router runs")
	t.Cleanup(func() {
		require.NoError(t, r.Close())
		require.NoError(t, <-ended)
	})
}

// newRouter is the middleware for a whole router on the harness.
func (h *harness) newRouter(t *testing.T, b idempotency.Binding) *idempotency.Router {
	t.Helper()
	b.Scope = "svc"
	r, err := idempotency.NewRouter(idempotency.Config{Binding: patient(b), Keys: h.Keys(), Parking: h.Parking(), Logger: testLog(t)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Stop(context.Background())) })
	return r
}

// effectIn is effect as a router's handler.
func effectIn(msg *message.Message) error {
	tx, ok := idempotency.TxFrom(msg.Context())
	if !ok {
		return fmt.Errorf("no transaction")
	}
	_, err := effect(msg.Context(), tx, msg)
	return err
}

// In a plain router each handler has a scope of its own, what it returns goes to the outbox and never to the
// router's publisher, and a result is stored.
func TestRouterMiddleware(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		middleware := h.newRouter(t, idempotency.Binding{})
		channel := newChannel(t)
		runRouter(t, func(r *message.Router) {
			r.AddMiddleware(middleware.Middleware)
			r.AddHandler("transform", topic, channel, "transformed", forbidden{t}, func(msg *message.Message) ([]*message.Message, error) {
				tx, _ := idempotency.TxFrom(msg.Context())
				tx.SetResult("kept")
				if err := effectIn(msg); err != nil {
					return nil, err
				}
				return []*message.Message{message.NewMessage("", []byte("out"))}, nil
			})
			r.AddConsumerHandler("audit", topic, channel, effectIn)
		})
		for range 3 {
			require.NoError(t, channel.Publish(topic, newMessage("key", "1")))
		}
		require.Equal(t, 2, h.effectsOf(t, "key"), "once for each handler")
		require.JSONEq(t, `"kept"`, string(h.key(t, "svc/transform", "key").Result))
		require.Equal(t, keystore.Completed, h.key(t, "svc/audit", "key").State)
		rows := h.outgoing(t)
		require.Len(t, rows, 1)
		require.Equal(t, "transformed", rows[0].Topic)
		require.Equal(t, envelope.DeriveUUID("svc/transform", "key", 0), rows[0].Key)
		require.Len(t, middleware.Engines(), 2)
	})
}

// forbidden is a publisher that must not be used.
type forbidden struct{ t *testing.T }

func (f forbidden) Publish(topic string, _ ...*message.Message) error {
	f.t.Errorf("the router published to %s", topic)
	return nil
}

func (forbidden) Close() error { return nil }

// A message that was parked runs outside of the router, and what its handler returns still finds its topic. A row of a handler that
// has not been seen yet waits.
func TestRouterRunsParkedMessages(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		middleware := h.newRouter(t, idempotency.Binding{Retry: idempotency.Retry{InProcess: -1}})
		channel := newChannel(t)
		var calls atomic.Int64
		runRouter(t, func(r *message.Router) {
			r.AddMiddleware(middleware.Middleware)
			r.AddHandler("transform", topic, channel, "transformed", forbidden{t}, func(msg *message.Message) ([]*message.Message, error) {
				if calls.Add(1) == 1 {
					return nil, errBroken
				}
				return message.Messages{message.NewMessage("", []byte("out"))}, effectIn(msg)
			})
		})
		require.NoError(t, channel.Publish(topic, newMessage("key", "1")))
		require.NoError(t, h.Parking().Park(t.Context(), []parking.Row{{State: parking.Waiting, Scope: "svc/unseen", Topic: topic, UUID: "u", Key: "key"}}))
		_, err := h.DB().ExecContext(t.Context(), `UPDATE parked SET due_at = first_at`)
		require.NoError(t, err)
		rows, err := h.Parking().LeaseDue(t.Context(), []string{"svc/transform", "svc/unseen"}, 10, time.Minute)
		require.NoError(t, err)
		require.Len(t, rows, 2)
		for _, row := range rows {
			err := middleware.RunParked(t.Context(), row)
			require.Equal(t, row.Scope == "svc/unseen", err != nil, err)
		}
		require.Equal(t, 1, h.effects(t))
		require.Equal(t, "transformed", h.outgoing(t)[0].Topic)
	})
}

// What a handler does to its message reaches neither the broker nor the next attempt.
func TestHandlersOwnAck(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		var calls atomic.Int64
		e := h.newEngine(t, idempotency.Binding{Handler: func(ctx context.Context, tx *idempotency.Tx, msg *message.Message) (any, error) {
			require.Equal(t, "1", string(msg.Payload))
			require.Empty(t, msg.Metadata.Get("scribble"))
			msg.Ack()
			msg.Payload[0] = 'x'
			msg.Metadata.Set("scribble", "x")
			if calls.Add(1) == 1 {
				return nil, errBroken
			}
			_, err := tx.ExecContext(ctx, tx.Rebind(`INSERT INTO effects (k, v) VALUES (?, ?)`), tx.Key(), "1")
			return nil, err
		}})
		msg := newMessage("key", "1")
		e.acked(t, msg)
		select {
		case <-msg.Acked():
			require.FailNow(t, "the handler's ack reached the broker")
		default:
		}
		require.Equal(t, "1", string(msg.Payload))
		require.EqualValues(t, 2, calls.Load())
	})
}

// One engine behind one handler is a middleware, too; behind two it refuses the second rather than running the first's function for it.
func TestEngineMiddleware(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		e := h.newEngine(t, idempotency.Binding{Publish: "named"})
		require.Error(t, e.Process(newMessage("early", "1")), "there is no handler yet")
		require.Error(t, e.RunParked(t.Context(), parking.Leased{Row: parking.Row{Scope: scope, UUID: "u", Key: "early"}}))
		first := e.Middleware(func(msg *message.Message) ([]*message.Message, error) {
			return message.Messages{message.NewMessage("", []byte("out"))}, effectIn(msg)
		})
		second := e.Middleware(func(*message.Message) ([]*message.Message, error) {
			t.Error("it must not run under the first one's scope")
			return nil, nil
		})
		produced, err := first(newMessage("key", "1"))
		require.NoError(t, err)
		require.Empty(t, produced)
		require.Equal(t, "named", h.outgoing(t)[0].Topic)
		_, err = second(newMessage("other", "1"))
		require.ErrorContains(t, err, "NewRouter")

		plugin := h.newEngine(t, idempotency.Binding{Scope: "svc/plugin", Handler: effect})
		routed := plugin.Middleware(func(*message.Message) ([]*message.Message, error) {
			t.Error("the binding has a handler of its own")
			return nil, nil
		})
		_, err = routed(newMessage("key", "1"))
		require.NoError(t, err)
		require.Equal(t, 2, h.effects(t))
	})
}

// A binding that cannot work is refused when it is made, not at its first message.
func TestBadConfigurations(t *testing.T) {
	t.Parallel()
	h := onSQLite(t)
	for name, cfg := range map[string]idempotency.Config{
		"no scope":     {Binding: idempotency.Binding{Handler: effect}, Keys: h.Keys(), Parking: h.Parking()},
		"no store":     {Binding: idempotency.Binding{Scope: scope, Handler: effect}, Parking: h.Parking()},
		"no parking":   {Binding: idempotency.Binding{Scope: scope, Handler: effect}, Keys: h.Keys()},
		"two kinds":    {Binding: idempotency.Binding{Scope: scope, Handler: effect, External: external(nothing)}, Keys: h.Keys(), Parking: h.Parking()},
		"no call":      {Binding: idempotency.Binding{Scope: scope, External: &idempotency.External{}}, Keys: h.Keys(), Parking: h.Parking()},
		"no probe":     {Binding: idempotency.Binding{Scope: scope, External: &idempotency.External{Call: nothing, Unknown: idempotency.UnknownProbe}}, Keys: h.Keys(), Parking: h.Parking()},
		"wrong policy": {Binding: idempotency.Binding{Scope: scope, External: &idempotency.External{Call: nothing, Unknown: "rerty"}}, Keys: h.Keys(), Parking: h.Parking()},
	} {
		_, err := idempotency.New(cfg)
		require.Error(t, err, name)
	}
	for name, b := range map[string]idempotency.Binding{
		"no service":     {},
		"own handler":    {Scope: "svc", Handler: effect},
		"external":       {Scope: "svc", External: external(nothing)},
		"no store given": {Scope: "svc"},
	} {
		cfg := idempotency.Config{Binding: b, Keys: h.Keys(), Parking: h.Parking()}
		if name == "no store given" {
			cfg.Keys = nil
		}
		_, err := idempotency.NewRouter(cfg)
		require.Error(t, err, name)
	}
}
