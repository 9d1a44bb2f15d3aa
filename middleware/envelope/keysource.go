package envelope

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
)

// DefaultKeySource is the spec that ParseKeySource takes "" for.
const DefaultKeySource = "metadata:" + KeyHeader

// ParseKeySource returns the key source that spec names:
//
//   - "metadata:NAME" (default "metadata:idempotency-key"): a header, text or integer. A null
//     header is a missing one; a bool, table or array is a violation.
//   - "cloudevents": source and id of a CloudEvent, from headers (ce-, ce_, cloudEvents:, cloudEvents_) or a structured JSON body.
//   - "amqp-message-id", "nats-msg-id", "sqs-deduplication-id": the id of the broker's protocol.
//   - "kafka-record-key": the record's key. Only where it names the operation: a customer's number, say, would make
//     all the customer's messages one.
//   - "position": topic, partition and offset. It removes the broker's redeliveries only, no second sending of a producer.
//   - "json:/pointer": a string or an integer in the payload, by a JSON pointer (RFC 6901). An integer's text is its
//     decimal digits as they are written, so 11497 and "11497" are one key; null is missing; anything else,
//     and a payload that is not JSON, is a violation.
func ParseKeySource(spec string) (KeySource, error) {
	if spec == "" {
		spec = DefaultKeySource
	}
	kind, arg, hasArg := strings.Cut(spec, ":")
	switch {
	case kind == "metadata" && arg != "":
		return MetadataKey(arg), nil
	case kind == "json" && strings.HasPrefix(arg, "/"):
		return jsonKey(arg)
	case hasArg:
	case kind == "cloudevents":
		return cloudEventsKey, nil
	case kind == "amqp-message-id" || kind == "nats-msg-id" || kind == "sqs-deduplication-id":
		return messageIDKey, nil
	case kind == "kafka-record-key":
		return recordKey, nil
	case kind == "position":
		return positionKey, nil
	}
	return nil, fmt.Errorf(`key %q is none of "metadata:NAME", "json:/pointer", "cloudevents", "amqp-message-id", "nats-msg-id", "sqs-deduplication-id", "kafka-record-key", "position"`, spec)
}

// KeySourceCaveat returns what people must know about keys from spec, as one sentence for the printed guarantees; "" where there is nothing.
func KeySourceCaveat(spec string) string {
	switch {
	case spec == "position":
		return "The key is the message's position in the broker: redeliveries are removed, a producer's second sending is not."
	case spec == "kafka-record-key":
		return "The key is the Kafka record key: two records with one key are one message, so it must name the operation, not the customer."
	case strings.HasSuffix(spec, "-id") && !strings.Contains(spec, ":"):
		return "The key is the id of the broker's protocol: a message that reaches the broker by another way may carry another one."
	}
	return ""
}

// MetadataKey reads the key from the header name.
func MetadataKey(name string) KeySource {
	return func(msg *message.Message, d Delivery) (string, bool, error) {
		return header(msg, d, name)
	}
}

// header reads a header that must be text.
func header(msg *message.Message, d Delivery, name string) (string, bool, error) {
	switch kind, apart := d.Apart[name]; {
	case !apart:
		value, found := msg.Metadata[name]
		return value, found, nil
	case kind == "null":
		return "", false, nil
	case kind == "bytes": // bytes are apart only where they are no text
		return "", false, &Violation{RuleKeyInvalidUTF8, fmt.Sprintf("header %q is not valid UTF-8", name)}
	default:
		return "", false, &Violation{RuleKeyNotText, fmt.Sprintf("header %q is of kind %s, not text", name, kind)}
	}
}

func messageIDKey(_ *message.Message, d Delivery) (string, bool, error) {
	return d.MessageID, d.MessageID != "", nil
}

func recordKey(_ *message.Message, d Delivery) (string, bool, error) {
	return string(d.RecordKey), len(d.RecordKey) > 0, nil
}

func positionKey(_ *message.Message, d Delivery) (string, bool, error) {
	return d.Position, d.Position != "", nil
}

func jsonKey(text string) (KeySource, error) {
	p, err := parsePointer(text)
	if err != nil {
		return nil, fmt.Errorf("key: %w", err)
	}
	return func(msg *message.Message, _ Delivery) (string, bool, error) {
		doc, err := decodeJSON(msg.Payload)
		if err != nil {
			return "", false, &Violation{RuleKeyNotText, "the key is to be read from the payload, which is " + err.Error()}
		}
		value, found := p.in(doc)
		if !found || value == nil {
			return "", false, nil
		}
		return jsonText(value, text)
	}, nil
}

// jsonText returns the text of a JSON string or integer; where names it in the error.
func jsonText(value any, where string) (string, bool, error) {
	switch v := value.(type) {
	case string:
		// The decoder writes U+FFFD for broken UTF-8 and lone surrogates; different keys would become one.
		if strings.ContainsRune(v, utf8.RuneError) {
			return "", false, &Violation{RuleKeyInvalidUTF8, fmt.Sprintf("the text at %s is not valid UTF-8, or has U+FFFD in it", where)}
		}
		return v, true, nil
	case json.Number:
		if n := v.String(); !strings.ContainsAny(n, ".eE") {
			return integerText(n), true, nil
		}
	}
	return "", false, &Violation{RuleKeyNotText, fmt.Sprintf("the value at %s is neither a string nor an integer", where)}
}

func integerText(n string) string {
	if n == "-0" {
		return "0"
	}
	return n
}
