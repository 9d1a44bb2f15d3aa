package sqlbroker

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
)

// encodeMetadata writes metadata as watermill-sql does.
func encodeMetadata(metadata message.Metadata) (string, error) {
	if len(metadata) == 0 {
		return "{}", nil
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(map[string]string(metadata)); err != nil {
		return "", fmt.Errorf("encoding metadata: %w", err)
	}
	return out.String(), nil
}

// decodeMetadata reads the column. Numbers become text; what has no text form is named in apart, by its kind. The server
// saw to it that it is JSON; where it is no object, all of it is apart.
func decodeMetadata(column []byte) (metadata message.Metadata, apart map[string]string) {
	metadata = message.Metadata{}
	if len(column) == 0 {
		return metadata, nil
	}
	texts := map[string]*string{}
	if json.Unmarshal(column, &texts) == nil {
		for name, text := range texts {
			if text == nil {
				apart = set(apart, name, "null")
				continue
			}
			metadata[name] = *text
		}
		return metadata, apart
	}
	dec := json.NewDecoder(bytes.NewReader(column))
	dec.UseNumber()
	var values map[string]any
	if dec.Decode(&values) != nil {
		return metadata, map[string]string{"metadata": "array"}
	}
	for name, value := range values {
		switch v := value.(type) {
		case string:
			metadata[name] = v
		case json.Number:
			metadata[name] = v.String()
		case nil:
			apart = set(apart, name, "null")
		case bool:
			apart = set(apart, name, "bool")
		case []any:
			apart = set(apart, name, "array")
		default:
			apart = set(apart, name, "table")
		}
	}
	return metadata, apart
}

func set(m map[string]string, name, value string) map[string]string {
	if m == nil {
		m = map[string]string{}
	}
	m[name] = value
	return m
}
