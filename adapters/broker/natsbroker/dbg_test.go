package natsbroker

import (
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/oncemill/oncemill/adapters/broker"
)

func TestDbg(t *testing.T) {
	k := newBench(t)
	first, second := k.b, k.open()
	second.logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	_, msgs := k.subscribe(second, broker.Subscription{})
	k.publish("before")
	held := k.next(msgs)
	began := time.Now()
	first.Close()
	t.Log("closed", time.Since(began))
	k.b = second
	k.publish("after")
	t.Log("published", time.Since(began))
	m := k.next(msgs)
	t.Log("next", time.Since(began), string(m.Payload))
	info, err := k.raw().Info(t.Context())
	t.Logf("%+v %v", info, err)
	held.Ack()
	select {
	case <-held.Context().Done():
	case <-time.After(1 * time.Second):
		info, err := k.raw().Info(t.Context())
		t.Logf("%+v %v", info, err)
		<-held.Context().Done()
	}
	t.Log("ended", time.Since(began))
}
