package natsbroker

import (
	"context"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// watchBacklog calls CatchUp when what stood in the stream at the beginning is settled, by whichever replica.
func (s *subscriber) watchBacklog(ctx context.Context) {
	last, known := uint64(0), false
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, 500*time.Millisecond) {
		if info, err := s.standing(ctx); err == nil {
			if !known {
				last, known = info.last, true
			}
			if info.consumer.AckFloor.Stream >= last || info.consumer.NumPending+uint64(info.consumer.NumAckPending) == 0 {
				s.CatchUp()
				return
			}
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// standing is where stream and consumer stand.
type standing struct {
	last     uint64
	consumer *jetstream.ConsumerInfo
}

func (s *subscriber) standing(ctx context.Context) (standing, error) {
	ctx, cancel := s.b.link.during(ctx, requestTimeout)
	defer cancel()
	p, err := s.b.topology.place(ctx, s.sub.Topic)
	if err != nil {
		return standing{}, err
	}
	// First the stream: what comes between the two answers belongs to later.
	stream, err := s.b.link.js.Stream(ctx, p.stream)
	if err != nil {
		return standing{}, err
	}
	consumer, err := stream.Consumer(ctx, s.b.cfg.durable(s.sub.Topic, s.sub.Group))
	if err != nil {
		return standing{}, err
	}
	return standing{last: stream.CachedInfo().State.LastSeq, consumer: consumer.CachedInfo()}, nil
}
