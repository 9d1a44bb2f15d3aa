package envelope

import (
	"encoding/hex"
	"mime"
	"strings"
	"unicode"

	"github.com/ThreeDotsLabs/watermill/message"
)

// cloudEventsKey makes a key of an event's source and id, which together name it. Headers (binary mode) come
// before the body (structured mode).
func cloudEventsKey(msg *message.Message, d Delivery) (string, bool, error) {
	for _, prefix := range []string{"ce-", "ce_", "cloudEvents:", "cloudEvents_"} {
		source, hasSource, err := header(msg, d, prefix+"source")
		if err != nil {
			return "", false, err
		}
		id, hasID, err := header(msg, d, prefix+"id")
		if err != nil {
			return "", false, err
		}
		if hasSource && hasID {
			return eventKey(source, id)
		}
	}
	return structuredEventKey(msg)
}

func structuredEventKey(msg *message.Message) (string, bool, error) {
	if contentType(msg) == "application/cloudevents-batch+json" {
		return "", false, &Violation{RuleKeyNotText, "a batch of CloudEvents has no single key; publish its events one by one"}
	}
	doc, err := decodeJSON(msg.Payload)
	if err != nil {
		return "", false, nil
	}
	event, ok := doc.(map[string]any)
	if !ok || event["specversion"] == nil || event["source"] == nil || event["id"] == nil {
		return "", false, nil
	}
	source, _, err := jsonText(event["source"], "/source")
	if err != nil {
		return "", false, err
	}
	id, _, err := jsonText(event["id"], "/id")
	if err != nil {
		return "", false, err
	}
	return eventKey(source, id)
}

// contentType returns the message's media type without parameters, in lower case.
func contentType(msg *message.Message) string {
	for name, value := range msg.Metadata {
		if n := strings.ToLower(name); n == "content-type" || n == "content_type" {
			kind, _, _ := mime.ParseMediaType(value)
			return kind
		}
	}
	return ""
}

// eventKey joins source and id by a blank, which a source, a URI, cannot have. What is too long for that,
// or has one all the same, goes by its hash. Both must be there: an id alone is unique only within its source.
func eventKey(source, id string) (string, bool, error) {
	if isBlank(source) || isBlank(id) {
		return "", false, nil
	}
	for _, part := range []string{source, id} {
		if err := validateChars("key", part); err != nil {
			return "", false, err
		}
	}
	key := source + " " + id
	if len(key) <= MaxKey && !strings.ContainsFunc(source, unicode.IsSpace) {
		return key, true, nil
	}
	sum := hashParts(source, id)
	return "cloudevents:" + hex.EncodeToString(sum[:]), true, nil
}
