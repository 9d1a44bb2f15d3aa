package sqsbroker

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/outbox"
)

const (
	// uuidAttribute carries the message's UUID, as Watermill's own adapters name it.
	uuidAttribute = envelope.WatermillPrefix + "_message_uuid"
	// metadataAttribute carries, as a JSON object, the metadata that are no attributes of their own.
	metadataAttribute = envelope.ReservedPrefix + "metadata"
	// bodyAttribute says how a body is written that is no text.
	bodyAttribute = envelope.ReservedPrefix + "body"

	base64Body = "base64"
	emptyBody  = "empty"

	// maxAttributes is what the service takes; three are for our own.
	maxAttributes = 10
	maxPlain      = maxAttributes - 3
	// maxMessage is what the service takes of a message, and of a batch: body, names, types and values of attributes.
	maxMessage = 1 << 20
	// alwaysFits is the largest payload that fits whatever its bytes and its metadata are: base64 makes four bytes of three, and JSON
	// six of one control character.
	alwaysFits = 600 << 10
)

// outgoing is one message on its way.
type outgoing struct {
	index      int // in the batch
	key        string
	group      string
	dedupe     string
	body       string
	attributes map[string]types.MessageAttributeValue
	size       int
}

// encode makes an outgoing message that keeps the contract.
func encode(index int, uuid string, msg *message.Message) (outgoing, error) {
	o := outgoing{index: index, key: msg.Metadata[envelope.OrderingKeyHeader], dedupe: token(uuid)}
	// A message without order is a group of its own: nothing waits for it.
	o.group = o.dedupe
	if o.key != "" {
		o.group = token(o.key)
	}
	attributes := map[string]string{uuidAttribute: uuid}
	var err error
	if attributes[metadataAttribute], err = splitMetadata(msg.Metadata, attributes); err != nil {
		return o, err
	}
	o.body, attributes[bodyAttribute] = encodeBody(msg.Payload)
	o.size = len(o.body)
	o.attributes = make(map[string]types.MessageAttributeValue, len(attributes))
	for name, value := range attributes {
		if value == "" {
			continue
		}
		o.attributes[name] = types.MessageAttributeValue{DataType: aws.String("String"), StringValue: aws.String(value)}
		o.size += len(name) + len("String") + len(value)
	}
	if o.size > maxMessage {
		return o, fmt.Errorf("%w: it has %d bytes as SQS counts them, at most %d are possible; a payload that is no text counts four bytes for three",
			outbox.ErrUnpublishable, o.size, maxMessage)
	}
	return o, nil
}

// encodeBody returns the body, and how it is written where that is not as it is.
func encodeBody(payload []byte) (body, written string) {
	switch {
	case len(payload) == 0:
		return "-", emptyBody // the service takes no empty body
	case utf8.Valid(payload) && plainText(string(payload)):
		return string(payload), ""
	}
	return base64.StdEncoding.EncodeToString(payload), base64Body
}

// splitMetadata adds as many attributes as there may be, the well-known names first, and returns the rest as JSON.
func splitMetadata(metadata message.Metadata, attributes map[string]string) (string, error) {
	rest := map[string]string{}
	plain := 0
	names := slices.SortedFunc(maps.Keys(metadata), func(a, b string) int {
		if first, second := importance(a), importance(b); first != second {
			return second - first
		}
		return strings.Compare(a, b)
	})
	for _, name := range names {
		value := metadata[name]
		if plain < maxPlain && plainName(name) && value != "" && plainText(value) {
			attributes[name] = value
			plain++
			continue
		}
		rest[name] = value
	}
	if len(rest) == 0 {
		return "", nil
	}
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(rest); err != nil {
		return "", fmt.Errorf("encoding metadata: %w", err)
	}
	// JSON writes these two as they are; the service refuses them.
	return strings.NewReplacer("\uFFFE", `\ufffe`, "\uFFFF", `\uffff`).Replace(strings.TrimSpace(text.String())), nil
}

func importance(name string) int {
	switch name {
	case envelope.KeyHeader:
		return 3
	case envelope.OrderingKeyHeader:
		return 2
	case "content-type", "traceparent":
		return 1
	}
	return 0
}

// plainName reports whether the service takes name for an attribute.
func plainName(name string) bool {
	for i := range len(name) {
		c := name[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '.' && c != '_' && c != '-' {
			return false
		}
	}
	lower := strings.ToLower(name)
	return name != "" && name[0] != '.' && name[len(name)-1] != '.' && !strings.Contains(name, "..") &&
		!strings.HasPrefix(lower, "aws.") && !strings.HasPrefix(lower, "amazon.") &&
		name != uuidAttribute && name != metadataAttribute && name != bodyAttribute
}

// plainText reports whether the service takes s: the characters of XML.
func plainText(s string) bool {
	for _, r := range s {
		switch {
		case r == '\t', r == '\n', r == '\r':
		case r < ' ', r == 0xFFFE, r == 0xFFFF:
			return false
		}
	}
	return true
}
