package outbox

import (
	"maps"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/middleware/envelope"
)

// batch is what goes to the publisher in one call: records of one topic.
type batch struct {
	topic   string
	records []Record
}

// plan cuts records (in the order of their ids) into waves. The batches of one wave may be published at the same time; a wave
// begins when the one before has ended. Records of one ordering key that share a topic are in one batch only where the
// publisher promises that a refusal stops what follows (orderedBatch); otherwise each is in a wave of its own.
func plan(records []Record, orderedBatch bool) [][]batch {
	type place struct {
		wave  int
		topic string
	}
	var waves [][]batch
	last := map[string]place{}
	for _, rec := range records {
		wave := 0
		if prev, ok := last[rec.OrderingKey]; ok && rec.OrderingKey != "" {
			wave = prev.wave
			if !orderedBatch || prev.topic != rec.Topic {
				wave++
			}
		}
		last[rec.OrderingKey] = place{wave, rec.Topic}
		if wave == len(waves) {
			waves = append(waves, nil)
		}
		waves[wave] = add(waves[wave], rec)
	}
	return waves
}

func add(wave []batch, rec Record) []batch {
	for i := range wave {
		if wave[i].topic == rec.Topic {
			wave[i].records = append(wave[i].records, rec)
			return wave
		}
	}
	return append(wave, batch{topic: rec.Topic, records: []Record{rec}})
}

// Message builds the message that the record stands for: the same identities each time. The
// record's metadata is copied; what delays the record is not sent on.
func (r Record) Message() *message.Message {
	msg := message.NewMessage(r.UUID, r.Payload)
	maps.Copy(msg.Metadata, r.Metadata)
	delete(msg.Metadata, envelope.DeliverAtHeader)
	if r.Key != "" {
		msg.Metadata.Set(envelope.KeyHeader, r.Key)
	}
	if r.OrderingKey != "" {
		msg.Metadata.Set(envelope.OrderingKeyHeader, r.OrderingKey)
	}
	return msg
}
