package sqlcore

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/oncemill/oncemill/middleware/envelope"
)

const maxErrorText = 2 << 10

// identity is what makes a parked row the same message as another: its key, or where it has
// none its UUID. It is bounded, so that it can be indexed whatever a foreign producer sent.
func identity(key, uuid string) []byte {
	if key != "" {
		return bounded('k', key)
	}
	return bounded('u', uuid)
}

func bounded(kind byte, s string) []byte {
	if len(s) <= envelope.MaxKey {
		return append([]byte{kind}, s...)
	}
	sum := sha256.Sum256([]byte(s))
	return append([]byte{kind - 'a' + 'A'}, sum[:]...)
}

// orderID is the indexed form of an ordering key; nil where there is none.
func orderID(orderingKey string) []byte {
	if orderingKey == "" {
		return nil
	}
	return bounded('o', orderingKey)
}

// newToken makes a fencing token.
func newToken() string { return rand.Text() }

// encodeMetadata writes metadata as a JSON object. What is not valid UTF-8 cannot be in one; then names and
// values are in base64, and the text begins with 'b', so that nothing is lost.
func encodeMetadata(m map[string]string) []byte {
	plain := true
	for k, v := range m {
		plain = plain && utf8.ValidString(k) && utf8.ValidString(v)
	}
	if m == nil {
		m = map[string]string{}
	}
	if plain {
		return mustJSON(m)
	}
	coded := make(map[string]string, len(m))
	for k, v := range m {
		coded[base64.StdEncoding.EncodeToString([]byte(k))] = base64.StdEncoding.EncodeToString([]byte(v))
	}
	return append([]byte{'b'}, mustJSON(coded)...)
}

// mustJSON encodes what always has a JSON form.
func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

func decodeMetadata(b []byte) (map[string]string, error) {
	m := map[string]string{}
	if len(b) == 0 {
		return m, nil
	}
	if b[0] != 'b' {
		if err := json.Unmarshal(b, &m); err != nil {
			return nil, fmt.Errorf("decode metadata: %w", err)
		}
		return m, nil
	}
	coded := map[string]string{}
	if err := json.Unmarshal(b[1:], &coded); err != nil {
		return nil, fmt.Errorf("decode metadata: %w", err)
	}
	for k, v := range coded {
		name, err1 := base64.StdEncoding.DecodeString(k)
		value, err2 := base64.StdEncoding.DecodeString(v)
		if err1 != nil || err2 != nil {
			return nil, fmt.Errorf("decode metadata: not base64")
		}
		m[string(name)] = string(value)
	}
	return m, nil
}

// cut shortens s to at most max bytes without breaking a character.
func cut(s string, max int) string {
	if len(s) <= max {
		return s
	}
	for max > 0 && !utf8.RuneStart(s[max]) {
		max--
	}
	return s[:max]
}

// readable is s as a text column takes it on every database.
func readable(s string, max int) string {
	return cut(strings.ReplaceAll(strings.ToValidUTF8(s, "�"), "\x00", "�"), max)
}
