package rabbitbroker

import (
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const watchEvery = time.Second

// watch looks at the queue, until its backlog is settled, whether other replicas settled it: that is when it is seen empty twice
// with nothing in flight here, and no delivery in between, because a message on its way from the broker is in no count.
func (s *subscriber) watch() {
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	seen, before := false, uint64(0)
	for {
		select {
		case <-ticker.C:
		case <-s.backlog.caught:
			return
		case <-s.ctx.Done():
			return
		}
		idle, total := s.backlog.idle()
		empty := idle && s.Consuming() == nil && s.queueEmpty()
		if empty && seen && total == before {
			s.backlog.empty()
			return
		}
		seen, before = empty, total
	}
}

// queueEmpty asks on a channel of its own.
func (s *subscriber) queueEmpty() bool {
	conn, _, err := s.b.consume.get(s.ctx)
	if err != nil {
		return false
	}
	var ch *amqp.Channel
	if ch, err = conn.Channel(); err != nil {
		return false
	}
	defer func() { _ = ch.Close() }()
	queue, err := ch.QueueDeclarePassive(s.queue, true, false, false, false, nil)
	return err == nil && queue.Messages == 0
}
