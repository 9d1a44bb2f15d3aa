package natsbroker

import (
	"context"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/outbox"
)

// Only who can read the folder gets in.
func TestEmbeddedIsPrivate(t *testing.T) {
	t.Parallel()
	k := newBench(t)
	addr := readAddress(k.dir).Addr
	host, _, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1", host)
	for _, url := range []string{"nats://" + addr, "nats://wrong@" + addr} {
		_, err := nats.Connect(url)
		require.ErrorIs(t, err, nats.ErrAuthorization, url)
	}
	require.NoError(t, filepath.WalkDir(k.dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == k.dir || filepath.Dir(path) != k.dir {
			return err
		}
		info, err := entry.Info()
		require.NoError(t, err)
		require.Zero(t, info.Mode().Perm()&0o077, "%s is open to others: %s", path, info.Mode())
		return nil
	}))
}

// The port is kept over restarts where it is free, and another is taken where it is not.
func TestEmbeddedPort(t *testing.T) {
	t.Parallel()
	k := newBench(t)
	first := readAddress(k.dir)
	require.NoError(t, k.b.Close())
	k.b = k.open()
	require.Equal(t, first, readAddress(k.dir))
	require.NoError(t, k.b.Close())

	taken, err := net.Listen("tcp", first.Addr)
	require.NoError(t, err)
	defer taken.Close()
	k.b = k.open()
	require.NotEqual(t, first.Addr, readAddress(k.dir).Addr)
	k.publish("works")

	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err = EmbeddedFactory().Open(ctx, func(into any) error {
		into.(*EmbeddedConfig).Port = first.port()
		return nil
	}, broker.Options{Logger: testLogger(t), DataDir: t.TempDir()})
	require.ErrorContains(t, err, "choose another port")
}

// F055: the second that opens a folder works as a replica; when the first closes it serves on, and what was in flight survives.
func TestF055EmbeddedHandsOver(t *testing.T) {
	t.Parallel()
	k := newBench(t)
	first, second := k.b, k.open()
	_, msgs := k.subscribe(second, broker.Subscription{})
	k.publish("before")
	held := k.next(msgs)

	began := time.Now()
	require.NoError(t, first.Close())
	k.b = second
	k.publish("after")
	require.Less(t, time.Since(began), 5*time.Second)
	t.Logf("handed over in %s", time.Since(began))
	require.Equal(t, "after", string(k.next(msgs).Payload))
	require.NoError(t, held.Context().Err(), "the server's end took a delivery away that can still be settled")
	require.True(t, held.Ack())
	<-held.Context().Done()
	testenv.Eventually(t, 5*time.Second, func() error { return second.Ping(t.Context()) })
}

// What is in the folder belongs to whoever holds its lock, and the lock ends with its holder.
func TestEmbeddedLock(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	first, err := lockFile(path)
	require.NoError(t, err)
	_, err = lockFile(path)
	require.ErrorIs(t, err, errLocked)
	require.NoError(t, first.Close())
	again, err := lockFile(path)
	require.NoError(t, err)
	require.NoError(t, again.Close())
}

// A folder that cannot be used is an error that says so, within Open's context.
func TestEmbeddedFolderUnusable(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err := EmbeddedFactory().Open(t.Context(), func(any) error { return nil }, broker.Options{Logger: testLogger(t), DataDir: file})
	require.ErrorContains(t, err, "data folder")
	_, err = EmbeddedFactory().Open(t.Context(), func(any) error { return nil }, broker.Options{Logger: testLogger(t)})
	require.ErrorContains(t, err, "data folder")
}

func TestMark(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "mark")
	one, err := openMark(path)
	require.NoError(t, err)
	two, err := openMark(path)
	require.NoError(t, err)
	require.Zero(t, one.value())
	one.raise(7)
	two.raise(5)
	require.EqualValues(t, 7, two.value())
	one.close()
	one.close()
	one.raise(9)
	require.Zero(t, one.value())
	require.EqualValues(t, 7, two.value())
	two.close()
}

// A batch is stored whole and in order, alone or mixed with what must fail.
func TestEmbeddedBatches(t *testing.T) {
	t.Parallel()
	k := newBench(t)
	_, msgs := k.subscribe(k.b, broker.Subscription{InFlight: 2000})
	batch := make([]*message.Message, 1200)
	for i := range batch {
		batch[i] = message.NewMessage(envelope.NewUUID(), []byte{byte(i >> 8), byte(i)})
		batch[i].Metadata.Set("Nats-Msg-Id", "same") // would make the server drop all but one
	}
	for _, err := range k.b.Publisher().PublishBatch(t.Context(), k.topic, batch) {
		require.NoError(t, err)
	}
	for i := range batch {
		got := k.next(msgs)
		require.Equal(t, batch[i].UUID, got.UUID)
		require.Equal(t, batch[i].Metadata, got.Metadata)
		got.Ack()
	}
}

// A stream that takes no atomic batches, or refuses one because of one message in it, gets the messages one by one:
// what can be stored is, in the order of each key, and what follows a refused message is not.
func TestEmbeddedBatchRefused(t *testing.T) {
	t.Parallel()
	k := newBench(t)
	for name, cfg := range map[string]jetstream.StreamConfig{
		"no batches":    {},
		"small message": {AllowAtomicPublish: true},
	} {
		topic := testenv.Name(t, "b")
		cfg.Name, cfg.Subjects, cfg.MaxMsgSize = assetName(topic), []string{topic}, 2000
		stream, err := k.b.link.js.CreateStream(t.Context(), cfg)
		require.NoError(t, err)
		batch := make([]*message.Message, 6)
		for i := range batch {
			batch[i] = one("small")
			batch[i].Metadata.Set(envelope.OrderingKeyHeader, []string{"a", "b"}[i%2])
			batch[i].Metadata.Set("n", []string{"0", "1", "2", "3", "4", "5"}[i])
		}
		batch[2].Payload = make([]byte, 3000)
		errs := k.b.Publisher().PublishBatch(t.Context(), topic, batch)
		require.ErrorIs(t, errs[2], outbox.ErrUnpublishable, name)
		require.Error(t, errs[4], name)
		require.NotErrorIs(t, errs[4], outbox.ErrUnpublishable, name)
		for _, i := range []int{0, 1, 3, 5} {
			require.NoError(t, errs[i], "%s: %d", name, i)
		}
		consumer, err := stream.OrderedConsumer(t.Context(), jetstream.OrderedConsumerConfig{})
		require.NoError(t, err)
		stored, err := consumer.Fetch(4, jetstream.FetchMaxWait(5*time.Second))
		require.NoError(t, err)
		var got []string
		for msg := range stored.Messages() {
			got = append(got, decodeHeaders(msg.Headers()).metadata["n"])
		}
		require.Len(t, got, 4, name)
		require.Less(t, slices.Index(got, "1"), slices.Index(got, "3"), name)
		require.Less(t, slices.Index(got, "3"), slices.Index(got, "5"), name)
	}
}
