package handlertest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/outbox"
)

// relayLease is for how long a relay that died keeps its lanes, by the database's clock.
const relayLease = 10 * time.Second

// relay publishes what is in the outbox into the kit's file, which stands for a broker: it takes every copy. The error is the one of a step
// that broke.
func (k *Kit) relay(r *replica, fault stepHook) error {
	ctx, cancel := k.context()
	defer cancel()
	source := r.store.Outbox()
	if k.outbox != nil {
		source = k.outbox(r.store)
	}
	relay, err := outbox.NewRelay(outbox.RelayConfig{
		Source: source, Publisher: sentFile(k.dir), Owner: r.name + "/" + envelope.NewUUID(), Logger: k.logger(),
		Workers: 1, Poll: 10 * time.Millisecond, Lease: relayLease, Fault: fault.of(step{leased: true}),
	})
	if err != nil {
		return fmt.Errorf("make a relay: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(ctx) }()
	for {
		status, err := source.Status(ctx)
		if err != nil || status.Pending == 0 {
			cancel()
			return errors.Join(err, <-ended)
		}
		select {
		case err := <-ended:
			return err
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// sentFile is a folder with a file of the messages that relays published, one in a line, in the order in which they went out.
type sentFile string

// sentMessage is a line of it.
type sentMessage struct {
	Topic    string
	UUID     string
	Metadata message.Metadata
	Payload  []byte
}

func (f sentFile) name() string { return filepath.Join(string(f), "sent") }

// PublishBatch is outbox.Publisher's. A line is written whole, also by a process that is killed.
func (f sentFile) PublishBatch(_ context.Context, topic string, msgs []*message.Message) []error {
	errs := make([]error, len(msgs))
	file, err := os.OpenFile(f.name(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err == nil {
		defer file.Close()
	}
	for i, msg := range msgs {
		var line []byte
		if err == nil {
			line, err = json.Marshal(sentMessage{topic, msg.UUID, msg.Metadata, msg.Payload})
		}
		if err == nil {
			_, err = file.Write(append(line, '\n'))
		}
		errs[i] = err
	}
	return errs
}

// sent returns what went out, the copies of a message once, as the next consumer takes them.
func (k *Kit) sent() []sentMessage {
	k.t.Helper()
	data, err := os.ReadFile(sentFile(k.dir).name())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		k.t.Fatalf("handlertest: reading what was published: %v", err)
	}
	var all []sentMessage
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, len(data)+1)
	for lines.Scan() {
		var m sentMessage
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			k.t.Fatalf("handlertest: reading what was published: %v", err)
		}
		all = append(all, m)
	}
	return distinct(all)
}

// distinct leaves the first of the messages with one identity.
func distinct(all []sentMessage) []sentMessage {
	seen := map[string]bool{}
	return slices.DeleteFunc(all, func(m sentMessage) bool {
		identity := m.Topic + " " + m.UUID
		defer func() { seen[identity] = true }()
		return seen[identity]
	})
}
