package rabbitbroker

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/outbox"
)

// contentType is a metadata name that is also the AMQP property of this meaning.
const contentType = "content-type"

// reserved are names that RabbitMQ takes for its own: a text under the first two closes the channel.
var reserved = []string{"CC", "BCC"}

// encode makes the AMQP message that watermill-amqp would make, with an id and a content type.
func encode(msg *message.Message) (amqp.Publishing, error) {
	for _, name := range reserved {
		if _, used := msg.Metadata[name]; used {
			return amqp.Publishing{}, fmt.Errorf("%w: RabbitMQ takes metadata %q for a list of further recipients", outbox.ErrUnpublishable, name)
		}
	}
	return wamqp.DefaultMarshaler{PostprocessPublishing: func(p amqp.Publishing) amqp.Publishing {
		p.MessageId = msg.UUID
		// A property is a short string; the header holds the whole.
		if t := msg.Metadata[contentType]; len(t) <= maxName {
			p.ContentType = t
		}
		return p
	}}.Marshal(msg)
}

// decode makes a message of what the broker delivered. No header makes it fail.
func decode(d *amqp.Delivery, session string) (*message.Message, envelope.Delivery) {
	metadata := make(message.Metadata, len(d.Headers)+1)
	info := envelope.Delivery{Broker: Name, Session: session, MessageID: d.MessageId, Redelivered: d.Redelivered}
	own := ""
	for name, value := range d.Headers {
		switch {
		case name == wamqp.DefaultMessageUUIDHeaderKey:
			own, _ = text(value)
		case name == "x-delivery-count":
			if n, ok := text(value); ok && n != "0" {
				info.Redelivered = true
			}
		case ofBroker(name):
		case !utf8.ValidString(name):
			setApart(&info, strconv.Quote(name), "name")
		default:
			if s, ok := text(value); ok {
				metadata[name] = s
			} else {
				setApart(&info, name, kind(value))
			}
		}
	}
	if _, given := metadata[contentType]; !given && d.ContentType != "" {
		metadata[contentType] = d.ContentType
	}
	msg := message.NewMessage(envelope.ReceivedUUID(own, info), d.Body)
	msg.Metadata = metadata
	return msg, info
}

func setApart(d *envelope.Delivery, name, kind string) {
	if d.Apart == nil {
		d.Apart = map[string]string{}
	}
	d.Apart[name] = kind
}

// ofBroker reports whether RabbitMQ itself writes the header; a producer's own "x-request-id" is none of these.
func ofBroker(name string) bool {
	switch name {
	case "x-delivery-count", "x-acquired-count", "x-death", "x-opt-deaths", "x-received-from", "x-stream-offset":
		return true
	}
	return strings.HasPrefix(name, "x-first-death-") || strings.HasPrefix(name, "x-last-death-")
}

// text returns the text form of a header's value: numbers in decimal, timestamps in RFC 3339, bytes that are
// UTF-8 as they are. It has none for null, bool, table, array and other bytes.
func text(value any) (string, bool) {
	switch v := value.(type) {
	case string:
		return v, utf8.ValidString(v)
	case []byte:
		return string(v), utf8.Valid(v)
	case int8, int16, int32, int64, int, uint8, uint16, uint32, uint64:
		return fmt.Sprint(v), true
	case float32:
		return strconv.FormatFloat(float64(v), 'g', -1, 32), true
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64), true
	case time.Time:
		return v.UTC().Format(time.RFC3339), true
	case amqp.Decimal:
		return decimal(v), true
	}
	return "", false
}

// decimal writes value / 10^scale.
func decimal(d amqp.Decimal) string {
	digits := strconv.FormatInt(int64(d.Value), 10)
	if d.Scale == 0 {
		return digits
	}
	sign := ""
	if rest, negative := strings.CutPrefix(digits, "-"); negative {
		sign, digits = "-", rest
	}
	if missing := int(d.Scale) + 1 - len(digits); missing > 0 {
		digits = strings.Repeat("0", missing) + digits
	}
	point := len(digits) - int(d.Scale)
	return sign + digits[:point] + "." + digits[point:]
}

func kind(value any) string {
	switch value.(type) {
	case nil:
		return "null"
	case bool:
		return "bool"
	case amqp.Table:
		return "table"
	case []any:
		return "array"
	case string, []byte:
		return "bytes"
	}
	return fmt.Sprintf("%T", value)
}
