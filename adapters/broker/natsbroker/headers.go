package natsbroker

import (
	"bytes"
	"compress/flate"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"

	"github.com/oncemill/oncemill/middleware/envelope"
)

const (
	// uuidHeader carries the message's UUID, as Watermill's own adapters name it.
	uuidHeader = envelope.WatermillPrefix + "_message_uuid"
	// encodedHeader carries, as base64 of a JSON object, the metadata that no NATS header can hold unchanged.
	encodedHeader = envelope.ReservedPrefix + "metadata"
	// deflatedHeader carries all metadata, as base64 of a deflated JSON object, where as headers they would be too long.
	deflatedHeader = envelope.ReservedPrefix + "metadata-deflated"

	// maxHeaders is what JetStream takes, less what the server may add on the way.
	maxHeaders = 65535 - 4096
	// headerRoom is what a message's headers need of the server's max_payload.
	headerRoom = 96 << 10
	// maxInflated bounds what is inflated of a foreign producer's header.
	maxInflated = 8 * envelope.MaxMetadata
)

// encodeHeaders puts uuid and metadata into NATS headers, byte-exact.
func encodeHeaders(uuid string, metadata message.Metadata) (nats.Header, error) {
	header := make(nats.Header, len(metadata)+2)
	apart := map[string]string{}
	size := 0
	set := func(name, value string) {
		if !plainName(name) || !plainValue(value) {
			apart[name] = value
			return
		}
		header[name] = []string{value}
		size += len(name) + len(value) + len(": \r\n")
	}
	set(uuidHeader, uuid)
	for name, value := range metadata {
		set(name, value)
	}
	if len(apart) > 0 {
		text, err := toJSON(apart)
		if err != nil {
			return nil, err
		}
		set(encodedHeader, base64.StdEncoding.EncodeToString(text))
	}
	if size > maxHeaders {
		return deflateHeaders(uuid, metadata)
	}
	return header, nil
}

// deflateHeaders makes one header of all metadata. What the envelope allows always
// fits: text of 32 KiB has no more than so much to say.
func deflateHeaders(uuid string, metadata message.Metadata) (nats.Header, error) {
	all := map[string]string{uuidHeader: uuid}
	maps.Copy(all, metadata)
	text, err := toJSON(all)
	if err != nil {
		return nil, err
	}
	var deflated bytes.Buffer
	w, err := flate.NewWriter(&deflated, flate.BestCompression)
	if err == nil {
		_, err = w.Write(text)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("deflating metadata: %w", err)
	}
	return nats.Header{deflatedHeader: []string{base64.StdEncoding.EncodeToString(deflated.Bytes())}}, nil
}

func toJSON(pairs map[string]string) ([]byte, error) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(pairs); err != nil {
		return nil, fmt.Errorf("encoding metadata: %w", err)
	}
	return text.Bytes(), nil
}

// plainName reports whether name may be a NATS header. Names by which the server or the client steers are not
// plain: metadata copied from a received message must not make the server deduplicate, expire or refuse the new one.
func plainName(name string) bool {
	for i := range len(name) {
		if c := name[i]; c <= ' ' || c > '~' || strings.IndexByte("\"()/,:;<=>?@[\\]{}", c) >= 0 {
			return false
		}
	}
	lower := strings.ToLower(name)
	return name != "" && lower != "status" && lower != "description" && !strings.HasPrefix(lower, "nats-")
}

// plainValue reports whether value survives as a NATS header value: the client
// trims white space at the ends and replaces line breaks.
func plainValue(value string) bool {
	for i := range len(value) {
		if c := value[i]; c < ' ' || c == 0x7f {
			return false
		}
	}
	return value == "" || value[0] != ' ' && value[len(value)-1] != ' '
}

// received is what the headers of a delivered message say.
type received struct {
	uuid      string
	messageID string
	metadata  message.Metadata
	apart     map[string]string
}

// decodeHeaders reads the headers of any producer. What is no text is named apart; nothing makes a message unreadable.
func decodeHeaders(header nats.Header) received {
	r := received{metadata: make(message.Metadata, len(header))}
	for _, name := range slices.Sorted(maps.Keys(header)) {
		value := strings.Join(header[name], ", ")
		switch {
		case !utf8.ValidString(name) || !utf8.ValidString(value):
			r.setApart(strings.ToValidUTF8(name, "\uFFFD"), "binary")
		case strings.HasPrefix(name, batchHeaders):
		case name == encodedHeader || name == deflatedHeader:
			r.decode(name, value)
		default:
			r.set(name, value)
		}
	}
	if id := header.Get(nats.MsgIdHdr); utf8.ValidString(id) {
		r.messageID = id
	}
	return r
}

// decode adds the metadata that was not fit to be headers.
func (r *received) decode(name, value string) {
	text, err := base64.StdEncoding.DecodeString(value)
	if err == nil && name == deflatedHeader {
		text, err = io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(text)), maxInflated))
	}
	var pairs map[string]string
	if err != nil || json.Unmarshal(text, &pairs) != nil {
		r.setApart(name, "unreadable")
		return
	}
	for name, value := range pairs {
		r.set(name, value)
	}
}

func (r *received) set(name, value string) {
	if name == uuidHeader {
		r.uuid = value
		return
	}
	r.metadata[name] = value
}

func (r *received) setApart(name, kind string) {
	if r.apart == nil {
		r.apart = map[string]string{}
	}
	r.apart[name] = kind
}
