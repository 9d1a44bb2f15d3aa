package kafkabroker

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/middleware/envelope"
)

// decode makes a message of any record. It does not fail: headers that have no text form stand apart.
func decode(record *sarama.ConsumerMessage, session string) (*message.Message, envelope.Delivery) {
	delivery := envelope.Delivery{
		Broker:    name,
		Position:  fmt.Sprintf("%s/%d/%d", record.Topic, record.Partition, record.Offset),
		Session:   session,
		RecordKey: record.Key,
	}
	payload := record.Value
	if payload == nil {
		payload = []byte{}
	}
	var own string
	metadata := make(message.Metadata, len(record.Headers))
	for _, header := range record.Headers {
		if string(header.Key) == kafka.UUIDHeaderKey {
			own = string(header.Value)
			continue
		}
		addHeader(metadata, &delivery, string(header.Key), header.Value)
	}
	msg := message.NewMessage(envelope.ReceivedUUID(own, delivery), payload)
	msg.Metadata = metadata
	return msg, delivery
}

// addHeader takes one header in. Of several with one name the last counts.
func addHeader(metadata message.Metadata, delivery *envelope.Delivery, header string, value []byte) {
	kind := ""
	switch {
	case value == nil:
		kind = "null"
	case !utf8.Valid(value):
		kind = "bytes"
	}
	if header == "" || len(header) > envelope.MaxMetadataName || !utf8.ValidString(header) || strings.ContainsFunc(header, unicode.IsControl) {
		header, kind = strings.ToValidUTF8(header, "\uFFFD"), "name"
	}
	if kind == "" {
		delete(delivery.Apart, header)
		metadata[header] = string(value)
		return
	}
	if delivery.Apart == nil {
		delivery.Apart = map[string]string{}
	}
	delete(metadata, header)
	delivery.Apart[header] = kind
}
