package envelope

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// pointer is a parsed JSON pointer (RFC 6901).
type pointer []string

func parsePointer(text string) (pointer, error) {
	if text == "" {
		return nil, nil
	}
	if text[0] != '/' {
		return nil, fmt.Errorf("JSON pointer %q must begin with '/'", text)
	}
	p := strings.Split(text[1:], "/")
	for i, part := range p {
		if rest := strings.NewReplacer("~0", "", "~1", "").Replace(part); strings.Contains(rest, "~") {
			return nil, fmt.Errorf("JSON pointer %q: '~' must be written ~0, and '/' in a name ~1", text)
		}
		// The order matters: ~01 is the name "~1".
		p[i] = strings.ReplaceAll(strings.ReplaceAll(part, "~1", "/"), "~0", "~")
	}
	return p, nil
}

// in returns the value that p names in the document doc, and false where there is none.
func (p pointer) in(doc any) (any, bool) {
	for _, name := range p {
		switch v := doc.(type) {
		case map[string]any:
			member, ok := v[name]
			if !ok {
				return nil, false
			}
			doc = member
		case []any:
			i, err := strconv.Atoi(name)
			if err != nil || i < 0 || i >= len(v) || strconv.Itoa(i) != name {
				return nil, false
			}
			doc = v[i]
		default:
			return nil, false
		}
	}
	return doc, true
}

// decodeJSON decodes one JSON document, with numbers as they are written. Of a name given twice
// the last one counts, as for a handler that decodes the payload by encoding/json.
func decodeJSON(payload []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(payload))
	d.UseNumber()
	var doc any
	if err := d.Decode(&doc); err != nil {
		return nil, errors.New("not JSON")
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one JSON document")
	}
	return doc, nil
}
