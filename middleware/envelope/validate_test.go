package envelope_test

import (
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/envelope"
)

func requireRule(t *testing.T, want string, err error) {
	t.Helper()
	if want == "" {
		require.NoError(t, err)
		return
	}
	var v *envelope.Violation
	require.ErrorAs(t, err, &v)
	require.Equal(t, want, v.Rule)
	require.Equal(t, want, v.Permanent())
}

func TestValidateTopic(t *testing.T) {
	t.Parallel()
	for topic, rule := range map[string]string{
		"payments.requested":    "",
		"A_b-9":                 "",
		strings.Repeat("a", 45): "",
		"":                      envelope.RuleTopicEmpty,
		strings.Repeat("a", 46): envelope.RuleTopicTooLong,
		"a b":                   envelope.RuleTopicInvalid,
		"a/b":                   envelope.RuleTopicInvalid,
		"é":                     envelope.RuleTopicInvalid,
		"a*":                    envelope.RuleTopicInvalid,
		".":                     envelope.RuleTopicInvalid,
		".a":                    envelope.RuleTopicInvalid,
		"a.":                    envelope.RuleTopicInvalid,
		"a..b":                  envelope.RuleTopicInvalid,
	} {
		t.Run(topic, func(t *testing.T) { requireRule(t, rule, envelope.ValidateTopic(topic)) })
	}
}

func TestF013KeysWithControlCharacters(t *testing.T) {
	t.Parallel()
	for key, rule := range map[string]string{
		"a\x00b":                   envelope.RuleKeyControl,
		"a\nb":                     envelope.RuleKeyControl,
		"a\x1b[31mb":               envelope.RuleKeyControl,
		"a\x7f":                    envelope.RuleKeyControl,
		"a\u0085b":                 envelope.RuleKeyControl,
		"\xff\xfe\x41":             envelope.RuleKeyInvalidUTF8,
		"":                         envelope.RuleKeyEmpty,
		"   ":                      envelope.RuleKeyEmpty,
		"\u00a0":                   envelope.RuleKeyEmpty,
		strings.Repeat("k", 256):   envelope.RuleKeyTooLong,
		strings.Repeat("é", 128):   envelope.RuleKeyTooLong,
		strings.Repeat("k", 255):   "",
		"ord-a1 ":                  "",
		"ord-á1":                   "",
		"ord-ａ1":                   "",
		"x' OR '1'='1":             "",
		"order-1-creation\u202eab": "",
	} {
		t.Run(key, func(t *testing.T) {
			err := envelope.ValidateKey(key)
			requireRule(t, rule, err)
			if rule != "" {
				require.False(t, strings.ContainsFunc(err.Error(), unicode.IsControl), "a log record stays one line")
			}
		})
	}
}

func FuzzValidateKey(f *testing.F) {
	for _, seed := range []string{"", " ", "a", "a\x00b", "\xff\xfe", "a\u0085", strings.Repeat("k", 256), "é"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, key string) {
		err := envelope.ValidateKey(key)
		valid := strings.TrimSpace(key) != "" && len(key) <= 255 && utf8.ValidString(key)
		for _, r := range key {
			valid = valid && !(r < 0x20 || r >= 0x7f && r < 0xa0)
		}
		require.Equal(t, valid, err == nil)
		if err != nil {
			require.True(t, utf8.ValidString(err.Error()))
			require.False(t, strings.ContainsFunc(err.Error(), unicode.IsControl))
		}
	})
}

func TestValidateMessage(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 33<<10)
	for name, c := range map[string]struct {
		change   func(*message.Message)
		publish  string
		received string
	}{
		"plain":               {func(*message.Message) {}, "", ""},
		"nil metadata":        {func(m *message.Message) { m.Metadata = nil }, "", ""},
		"empty payload":       {func(m *message.Message) { m.Payload = nil }, "", ""},
		"no uuid":             {func(m *message.Message) { m.UUID = "" }, envelope.RuleUUIDMissing, ""},
		"long uuid":           {func(m *message.Message) { m.UUID = strings.Repeat("u", 37) }, envelope.RuleUUIDTooLong, envelope.RuleUUIDTooLong},
		"NUL in uuid":         {func(m *message.Message) { m.UUID = "a\x00" }, envelope.RuleUUIDInvalid, envelope.RuleUUIDInvalid},
		"watermill name":      {func(m *message.Message) { m.Metadata["_watermill_message_uuid"] = "x" }, envelope.RuleMetadataReserved, ""},
		"reserved name":       {func(m *message.Message) { m.Metadata["oncemill-reason"] = "x" }, envelope.RuleMetadataReserved, ""},
		"empty name":          {func(m *message.Message) { m.Metadata[""] = "x" }, envelope.RuleMetadataName, envelope.RuleMetadataName},
		"long name":           {func(m *message.Message) { m.Metadata[long[:256]] = "x" }, envelope.RuleMetadataName, envelope.RuleMetadataName},
		"name of two lines":   {func(m *message.Message) { m.Metadata["a\r\nb"] = "x" }, envelope.RuleMetadataName, envelope.RuleMetadataName},
		"value not UTF-8":     {func(m *message.Message) { m.Metadata["a"] = "\xff" }, envelope.RuleMetadataUTF8, envelope.RuleMetadataUTF8},
		"NUL in a value":      {func(m *message.Message) { m.Metadata["a"] = "\x00" }, "", ""},
		"much metadata":       {func(m *message.Message) { m.Metadata["a"] = long }, envelope.RuleMetadataTooLarge, envelope.RuleMetadataTooLarge},
		"bad key":             {func(m *message.Message) { m.Metadata["idempotency-key"] = "a\nb" }, envelope.RuleKeyControl, ""},
		"blank key":           {func(m *message.Message) { m.Metadata["idempotency-key"] = " " }, envelope.RuleKeyEmpty, ""},
		"empty ordering key":  {func(m *message.Message) { m.Metadata["ordering-key"] = "" }, "", ""},
		"bad ordering key":    {func(m *message.Message) { m.Metadata["ordering-key"] = "a\x00" }, "ordering-key-control-character", "ordering-key-control-character"},
		"deliver-at":          {func(m *message.Message) { m.Metadata["deliver-at"] = "2026-01-31T12:00:00.5+02:00" }, "", ""},
		"deliver-at no zone":  {func(m *message.Message) { m.Metadata["deliver-at"] = "2026-01-31T12:00:00" }, envelope.RuleDeliverAt, ""},
		"large payload":       {func(m *message.Message) { m.Payload = make([]byte, 1<<20+1) }, envelope.RulePayloadTooLarge, envelope.RulePayloadTooLarge},
		"largest payload":     {func(m *message.Message) { m.Payload = make([]byte, 1<<20) }, "", ""},
		"trace headers":       {func(m *message.Message) { m.Metadata["traceparent"] = "00-0-0-01"; m.Metadata["baggage"] = "a=b" }, "", ""},
		"foreign header name": {func(m *message.Message) { m.Metadata["cloudEvents:id"] = "1" }, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			msg := message.NewMessage("u-1", []byte("{}"))
			msg.Metadata["idempotency-key"] = "k-1"
			c.change(msg)
			requireRule(t, c.publish, envelope.ValidateMessage(msg, envelope.Limits{}))
			requireRule(t, c.received, envelope.ValidateReceived(msg, envelope.Limits{}))
		})
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	msg := message.NewMessage("u-1", make([]byte, 2<<20))
	msg.Metadata["oncemill-reason"] = "x"
	require.NoError(t, envelope.ValidateMessage(msg, envelope.Limits{MaxPayload: 2 << 20, AllowReserved: true}))
	msg.Metadata["_watermill_x"] = "x"
	requireRule(t, envelope.RuleMetadataReserved, envelope.ValidateMessage(msg, envelope.Limits{MaxPayload: 2 << 20, AllowReserved: true}))
}

func TestDeliverAt(t *testing.T) {
	t.Parallel()
	msg := message.NewMessage("u-1", nil)
	at, err := envelope.DeliverAt(msg)
	require.NoError(t, err)
	require.True(t, at.IsZero())
	msg.Metadata["deliver-at"] = "2026-01-31T14:00:00+02:00"
	at, err = envelope.DeliverAt(msg)
	require.NoError(t, err)
	require.True(t, at.Equal(time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)))
}

func TestPrepare(t *testing.T) {
	t.Parallel()
	msg := &message.Message{Payload: []byte("abc")}
	c := envelope.Prepare(msg)
	require.Empty(t, msg.UUID)
	require.Nil(t, msg.Metadata)
	require.Len(t, c.UUID, 36)
	require.NotNil(t, c.Metadata)
	c.Payload[0] = 'X'
	require.Equal(t, "abc", string(msg.Payload))

	msg = message.NewMessage("u-1", nil)
	msg.Metadata["a"] = "1"
	msg.SetContext(envelope.WithDelivery(t.Context(), envelope.Delivery{Position: "p"}))
	c = envelope.Prepare(msg)
	require.Equal(t, "u-1", c.UUID)
	require.Equal(t, "p", envelope.DeliveryFrom(c.Context()).Position)
	c.Metadata["a"] = "2"
	require.Equal(t, "1", msg.Metadata["a"])
	require.True(t, c.Ack())
	select {
	case <-msg.Acked():
		t.Fatal("the copy's ack reached the message")
	default:
	}
}
