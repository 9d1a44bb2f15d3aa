package sqsbroker

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// received is what a message of any producer says.
type received struct {
	uuid     string
	metadata message.Metadata
	apart    map[string]string
	payload  []byte
}

// decode reads a message. What is no text is named apart; nothing makes a message unreadable.
func decode(m *types.Message) received {
	r := received{metadata: make(message.Metadata, len(m.MessageAttributes)), payload: []byte(aws.ToString(m.Body))}
	for name, value := range m.MessageAttributes {
		text, isText := attributeText(value)
		switch {
		case !isText:
			r.setApart(name, "bytes")
		case name == uuidAttribute:
			r.uuid = text
		case name == metadataAttribute:
			r.unpack(text)
		case name == bodyAttribute && r.decodeBody(text):
		default:
			r.metadata[name] = text
		}
	}
	return r
}

func attributeText(value types.MessageAttributeValue) (string, bool) {
	if value.StringValue != nil {
		return *value.StringValue, utf8.ValidString(*value.StringValue)
	}
	return string(value.BinaryValue), utf8.Valid(value.BinaryValue)
}

func (r *received) unpack(text string) {
	pairs := map[string]string{}
	if json.Unmarshal([]byte(text), &pairs) != nil {
		r.metadata[metadataAttribute] = text // not ours
		return
	}
	for name, value := range pairs {
		r.metadata[name] = value
	}
}

// decodeBody returns false where the body is not written as it says.
func (r *received) decodeBody(written string) bool {
	switch written {
	case emptyBody:
		r.payload = []byte{}
		return true
	case base64Body:
		payload, err := base64.StdEncoding.DecodeString(string(r.payload))
		if err == nil {
			r.payload = payload
		}
		return err == nil
	}
	return false
}

func (r *received) setApart(name, kind string) {
	if r.apart == nil {
		r.apart = map[string]string{}
	}
	r.apart[name] = kind
}

func system(m *types.Message, name types.MessageSystemAttributeName) string {
	return m.Attributes[string(name)]
}

// orderOf returns the ordering key that the message group of a foreign producer's message stands for; a group of one message is none.
func (r *received) orderOf(m *types.Message) string {
	group := system(m, types.MessageSystemAttributeNameMessageGroupId)
	if r.uuid != "" || group == system(m, types.MessageSystemAttributeNameMessageDeduplicationId) || strings.TrimSpace(group) == "" {
		return ""
	}
	return group
}
