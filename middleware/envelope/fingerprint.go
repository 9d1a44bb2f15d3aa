package envelope

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/gowebpki/jcs"
)

// Fingerprint returns the print of a message's payload, as "kind:version:digest", or "" where none is taken.
// Metadata never counts, so trace and delivery headers cannot make a duplicate look different. It is
// safe for concurrent use.
type Fingerprint func(msg *message.Message) string

// fingerprintVersion changes when the same payload would get another digest.
const fingerprintVersion = "1"

// ParseFingerprint returns the fingerprint that spec names:
//
//   - "payload" (also ""): SHA-256 over the payload bytes.
//   - "json": SHA-256 over the payload's canonical form (RFC 8785), for producers that write one
//     value in several ways.
//   - "json:/a,/b": SHA-256 over the canonical form of the values at these JSON pointers (RFC 6901), for
//     producers that stamp each sending.
//   - "off": none is taken; two different payloads under one key are not told apart.
//
// The forms of JSON take the bytes of a payload that has no exact canonical form: what is
// not JSON, names a member twice, has a number beyond a double's precision, or has none of the
// pointers. Such a payload equals only the very same bytes.
func ParseFingerprint(spec string) (Fingerprint, error) {
	switch {
	case spec == "" || spec == "payload":
		return payloadFingerprint, nil
	case spec == "off":
		return func(*message.Message) string { return "" }, nil
	case spec == "json":
		return jsonFingerprint, nil
	case strings.HasPrefix(spec, "json:"):
		return pointersFingerprint(strings.TrimPrefix(spec, "json:"))
	}
	return nil, fmt.Errorf(`fingerprint %q is none of "payload", "json", "json:/pointer,/pointer", "off"`, spec)
}

// SameFingerprint reports whether two prints can be of one payload. Prints are compared only where both
// were taken in the same way: if one is empty, or kind or version differ, it says true. So
// after a change of the fingerprint (or an upgrade of its version) a duplicate is still a duplicate, never a mismatch;
// the price is that a different payload under an old key is not noticed until keys of the new kind are there.
func SameFingerprint(a, b string) bool {
	if a == "" || b == "" || a == b {
		return true
	}
	return fingerprintKind(a) != fingerprintKind(b)
}

// fingerprintKind is kind and version, with which two prints are comparable.
func fingerprintKind(print string) string {
	return print[:strings.LastIndexByte(print, ':')+1]
}

func fingerprintText(kind string, sum [sha256.Size]byte) string {
	return kind + ":" + fingerprintVersion + ":" + hex.EncodeToString(sum[:])
}

func payloadFingerprint(msg *message.Message) string {
	return fingerprintText("payload", sha256.Sum256(msg.Payload))
}

func jsonFingerprint(msg *message.Message) string {
	canonical, err := canonicalJSON(msg.Payload)
	if err != nil {
		return fingerprintText("json", hashParts("bytes", string(msg.Payload)))
	}
	return fingerprintText("json", hashParts("canonical", string(canonical)))
}

func pointersFingerprint(list string) (Fingerprint, error) {
	texts := strings.Split(list, ",")
	pointers := make([]pointer, len(texts))
	for i, text := range texts {
		p, err := parsePointer(text)
		if err != nil {
			return nil, fmt.Errorf("fingerprint: %w", err)
		}
		if len(p) == 0 {
			return nil, fmt.Errorf(`fingerprint "json:%s" has an empty pointer; the whole document is "json"`, list)
		}
		pointers[i] = p
	}
	// Prints over different pointers are of different kinds: they must never be compared.
	sum := hashParts(texts...)
	kind := "json-" + hex.EncodeToString(sum[:4])
	return func(msg *message.Message) string {
		parts, ok := pointerParts(msg.Payload, pointers)
		if !ok {
			return fingerprintText(kind, hashParts("bytes", string(msg.Payload)))
		}
		return fingerprintText(kind, hashParts(parts...))
	}, nil
}

// pointerParts returns the canonical value at each pointer, "" for an absent one, and false where no print can be made of them.
func pointerParts(payload []byte, pointers []pointer) ([]string, bool) {
	// encoding/json mends bad UTF-8 and takes the last of two members; such documents are not to equal others.
	if _, err := jcs.Transform(payload); err != nil {
		return nil, false
	}
	doc, err := decodeJSON(payload)
	if err != nil {
		return nil, false
	}
	parts, any := []string{"pointers"}, false
	for _, p := range pointers {
		value, found := p.in(doc)
		if !found {
			parts = append(parts, "")
			continue
		}
		text, err := json.Marshal(value)
		if err != nil {
			return nil, false
		}
		canonical, err := canonicalJSON(text)
		if err != nil {
			return nil, false
		}
		parts, any = append(parts, string(canonical)), true
	}
	return parts, any
}
