package natsbroker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"
)

const (
	// The headers of JetStream's atomic batches. They stay on the stored messages.
	batchHeaders  = "Nats-Batch-"
	batchID       = batchHeaders + "Id"
	batchSequence = batchHeaders + "Sequence"
	batchCommit   = batchHeaders + "Commit"

	// atomicMost is below what a server takes by default.
	atomicMost = 500
	// atomicBytes bounds what the server holds in memory when a batch commits.
	atomicBytes = 4 << 20
)

// atomic publishes what it can in atomic batches, and returns the chains that are still to be published one
// by one. The embedded server flushes a batch to disk once, where it flushes every single message.
func (b *batch) atomic(ctx context.Context, chains []chain) []chain {
	ready, left := b.inOrder(chains)
	for len(ready) > 1 {
		n := b.cut(ready)
		err := b.publishAtomic(ctx, ready[:n])
		if err != nil {
			err = b.refused(ctx, err)
			if err == nil {
				break
			}
			// The order of a key forbids to try what follows.
			for _, i := range ready {
				b.errs[i] = err
			}
			return left
		}
		ready = ready[n:]
	}
	return append(left, chainsOf(chains, ready)...)
}

// cut returns how many of ready make the next batch; at least one.
func (b *batch) cut(ready []int) int {
	size := 0
	for n, i := range ready {
		size += b.encoded[i].Size()
		if n > 0 && (size > atomicBytes || n == atomicMost) {
			return n
		}
	}
	return len(ready)
}

// inOrder lists the messages that may be sent, in their order. The chain of a message that may not is returned as
// it is: its error and what follows from it are noted one by one.
func (b *batch) inOrder(chains []chain) (ready []int, left []chain) {
	limit := b.p.b.link.nc.MaxPayload()
	for _, c := range chains {
		if slices.ContainsFunc(c, func(i int) bool { return b.errs[i] != nil || int64(b.encoded[i].Size()) > limit-headerSlack }) {
			left = append(left, c)
			continue
		}
		ready = append(ready, c...)
	}
	slices.Sort(ready)
	return ready, left
}

// headerSlack is what the headers of a batch add to a message, at most.
const headerSlack = 256

// chainsOf are the parts of chains that are in ready, which is sorted.
func chainsOf(chains []chain, ready []int) []chain {
	var all []chain
	for _, c := range chains {
		c = slices.DeleteFunc(slices.Clone(c), func(i int) bool {
			_, found := slices.BinarySearch(ready, i)
			return !found
		})
		if len(c) > 0 {
			all = append(all, c)
		}
	}
	return all
}

// publishAtomic publishes the messages of part, all or none.
func (b *batch) publishAtomic(ctx context.Context, part []int) error {
	select {
	case b.p.window <- struct{}{}:
		defer func() { <-b.p.window }()
	case <-ctx.Done():
		return fmt.Errorf("not sent: %w", ctx.Err())
	}
	id := nuid.Next()
	link := b.p.b.link
	for n, i := range part {
		m := b.encoded[i]
		m.Header[batchID] = []string{id}
		m.Header[batchSequence] = []string{strconv.Itoa(n + 1)}
		defer func() {
			for _, name := range []string{batchID, batchSequence, batchCommit} {
				delete(m.Header, name)
			}
		}()
		if n == len(part)-1 {
			m.Header[batchCommit] = []string{"1"}
			future, err := link.js.PublishMsgAsync(m, jetstream.WithRetryAttempts(0))
			if err != nil {
				return err
			}
			return await(ctx, future)
		}
		if err := link.nc.PublishMsg(m); err != nil {
			return err
		}
	}
	return nil
}

// refused returns nil when the server stored nothing of a batch and said so: its messages are
// sent one by one then. Otherwise the error is that of each message.
func (b *batch) refused(ctx context.Context, err error) error {
	var api *jetstream.APIError
	switch {
	case errors.As(err, &api):
		return nil
	case errors.Is(err, jetstream.ErrNoStreamResponse):
		return classify(b.declare(ctx))
	}
	return classify(err)
}
