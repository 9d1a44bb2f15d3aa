package natsbroker

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/oncemill/oncemill/middleware/envelope"
)

// wire is what a header looks like after the journey through the client's encoder and decoder.
func wire(t require.TestingT, header nats.Header) nats.Header {
	if len(header) == 0 {
		return nil
	}
	msg := &nats.Msg{Subject: "s", Header: header}
	size := msg.Size()
	require.LessOrEqual(t, size, 65535, "JetStream takes no longer headers")
	var text strings.Builder
	text.WriteString("NATS/1.0\r\n")
	for name, values := range header {
		for _, value := range values {
			fmt.Fprintf(&text, "%s: %s\r\n", name, value)
		}
	}
	text.WriteString("\r\n")
	decoded, err := nats.DecodeHeadersMsg([]byte(text.String()))
	require.NoError(t, err)
	return decoded
}

func wantRoundtrip(t require.TestingT, uuid string, metadata message.Metadata) nats.Header {
	header, err := encodeHeaders(uuid, metadata)
	require.NoError(t, err)
	got := decodeHeaders(wire(t, header))
	require.Equal(t, uuid, got.uuid)
	require.Equal(t, metadata, got.metadata)
	require.Empty(t, got.apart)
	require.Empty(t, got.messageID)
	return header
}

// Metadata survives byte for byte, whatever it is.
func TestHeadersRoundtrip(t *testing.T) {
	t.Parallel()
	names := rapid.OneOf(rapid.StringN(1, 20, 255), rapid.SampledFrom([]string{
		"Nats-Msg-Id", "nats-ttl", "Status", "Description", "a b", "a:b", "ä", "x\u2028", "Key", "key", "content-type",
	}))
	values := rapid.OneOf(rapid.StringN(0, 50, 500), rapid.SampledFrom([]string{
		"", " ", " a", "a ", "a\r\nNats-Msg-Id: 1", "\x00", "\t", "Ä☃", "a, b", "\u00a0",
	}))
	rapid.Check(t, func(t *rapid.T) {
		metadata := message.Metadata(rapid.MapOfN(names, values, 0, 10).Draw(t, "metadata"))
		delete(metadata, uuidHeader)
		wantRoundtrip(t, rapid.StringN(1, 12, 36).Draw(t, "uuid"), metadata)
	})
}

// Names by which NATS steers never reach the server as headers.
func TestHeadersSteerNothing(t *testing.T) {
	t.Parallel()
	header := wantRoundtrip(t, "u", message.Metadata{"Nats-Msg-Id": "1", "Nats-Expected-Last-Sequence": "7", "nats-rollup": "all", "Status": "503", "plain": "v"})
	for name := range header {
		require.Contains(t, []string{"plain", uuidHeader, encodedHeader}, name)
	}
}

// The envelope allows more names than JetStream's 64 KiB of headers hold.
func TestHeadersManyNames(t *testing.T) {
	t.Parallel()
	metadata := message.Metadata{}
	for n := 0; len(metadata) < envelope.MaxMetadata/4; n++ {
		metadata[fmt.Sprintf("%03x", n)] = string(rune('a' + n%26))
	}
	wantRoundtrip(t, "u", metadata)
	wantRoundtrip(t, "u", message.Metadata{"n": strings.Repeat("\n", envelope.MaxMetadata-1)})
	wantRoundtrip(t, "u", message.Metadata{"n": strings.Repeat("\u0001\u0002\u0007", envelope.MaxMetadata/3)})
}

// F035: what other producers send is readable, whatever it is.
func TestF035ForeignHeaders(t *testing.T) {
	t.Parallel()
	got := decodeHeaders(nats.Header{
		"many": {"a", "b"}, "bytes": {"\xff\xfe"}, "n\xff": {"v"}, "Nats-Msg-Id": {"id"},
		encodedHeader: {"not base64!"}, deflatedHeader: {"AAAA"}, "Nats-Batch-Id": {"b"}, "empty": {},
	})
	require.Equal(t, message.Metadata{"many": "a, b", "Nats-Msg-Id": "id", "empty": ""}, got.metadata)
	require.Equal(t, "id", got.messageID)
	require.Equal(t, map[string]string{"bytes": "binary", "n\uFFFD": "binary", encodedHeader: "unreadable", deflatedHeader: "unreadable"}, got.apart)
	require.NotNil(t, decodeHeaders(nil).metadata)
}
