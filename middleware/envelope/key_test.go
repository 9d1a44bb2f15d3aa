package envelope_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/envelope"
)

func extract(t *testing.T, spec string, msg *message.Message, d envelope.Delivery, missing envelope.MissingKey) (string, envelope.KeyOrigin, error) {
	t.Helper()
	source, err := envelope.ParseKeySource(spec)
	require.NoError(t, err)
	return envelope.ExtractKey(msg, d, source, missing)
}

func received(payload string, metadata ...string) *message.Message {
	msg := message.NewMessage("u-1", []byte(payload))
	for i := 0; i < len(metadata); i += 2 {
		msg.Metadata[metadata[i]] = metadata[i+1]
	}
	return msg
}

func TestF012MissingKeys(t *testing.T) {
	t.Parallel()
	keyless := map[string]struct {
		msg *message.Message
		d   envelope.Delivery
	}{
		"absent": {msg: received("a")},
		"empty":  {msg: received("b", "idempotency-key", "")},
		"blank":  {msg: received("c", "idempotency-key", "   ")},
		"null":   {msg: received("d"), d: envelope.Delivery{Apart: map[string]string{"idempotency-key": "null"}}},
	}
	derived := map[string]bool{}
	for name, m := range keyless {
		t.Run(name, func(t *testing.T) {
			_, _, err := extract(t, "", m.msg, m.d, envelope.MissingReject)
			requireRule(t, envelope.RuleKeyMissing, err)

			key, origin, err := extract(t, "", m.msg, m.d, envelope.MissingPass)
			require.NoError(t, err)
			require.Equal(t, envelope.KeyNone, origin)
			require.Empty(t, key)

			key, origin, err = extract(t, "", m.msg, m.d, envelope.MissingDerive)
			require.NoError(t, err)
			require.Equal(t, envelope.KeyDerived, origin)
			require.NoError(t, envelope.ValidateKey(key))
			require.False(t, derived[key], "no two of them share a key")
			derived[key] = true
		})
	}
	_, _, err := extract(t, "", received(""), envelope.Delivery{}, envelope.MissingDerive)
	requireRule(t, envelope.RuleKeyMissing, err)
}

func TestF017KeyHeadersThatAreNoText(t *testing.T) {
	t.Parallel()
	for kind, rule := range map[string]string{
		"bool": envelope.RuleKeyNotText, "table": envelope.RuleKeyNotText, "array": envelope.RuleKeyNotText,
		"bytes": envelope.RuleKeyInvalidUTF8,
	} {
		d := envelope.Delivery{Apart: map[string]string{"idempotency-key": kind}}
		for _, missing := range []envelope.MissingKey{envelope.MissingReject, envelope.MissingPass, envelope.MissingDerive} {
			_, _, err := extract(t, "", received("{}"), d, missing)
			requireRule(t, rule, err)
		}
	}
	// An unrelated odd header is none of the key's business.
	d := envelope.Delivery{Apart: map[string]string{"x": "table", "y": "null"}}
	key, origin, err := extract(t, "", received("", "idempotency-key", "11497"), d, "")
	require.NoError(t, err)
	require.Equal(t, "11497", key)
	require.Equal(t, envelope.KeyGiven, origin)
}

func TestF020NullHeaderIsMissingAndEmptyMetadataToo(t *testing.T) {
	t.Parallel()
	d := envelope.Delivery{Apart: map[string]string{"idempotency-key": "null"}}
	_, _, err := extract(t, "", received(""), d, "")
	requireRule(t, envelope.RuleKeyMissing, err)
}

func TestKeySources(t *testing.T) {
	t.Parallel()
	d := envelope.Delivery{Position: "orders/0/17", MessageID: "m-1", RecordKey: []byte("r-1")}
	long := "https://example.org/" + strings.Repeat("x", 250)
	for name, c := range map[string]struct {
		spec, payload string
		metadata      []string
		key, rule     string
	}{
		"metadata":              {"metadata:order-id", "", []string{"order-id", "o 1 "}, "o 1 ", ""},
		"metadata control":      {"metadata:order-id", "", []string{"order-id", "o\n"}, "", envelope.RuleKeyControl},
		"amqp":                  {"amqp-message-id", "", nil, "m-1", ""},
		"nats":                  {"nats-msg-id", "", nil, "m-1", ""},
		"sqs":                   {"sqs-deduplication-id", "", nil, "m-1", ""},
		"record key":            {"kafka-record-key", "", nil, "r-1", ""},
		"position":              {"position", "", nil, "orders/0/17", ""},
		"pointer":               {"json:/a/0/b~1c~0", `{"a":[{"b/c~":"k"}]}`, nil, "k", ""},
		"pointer integer":       {"json:/id", `{"id":11497}`, nil, "11497", ""},
		"pointer large integer": {"json:/id", `{"id":90071992547409930000001}`, nil, "90071992547409930000001", ""},
		"pointer minus zero":    {"json:/id", `{"id":-0}`, nil, "0", ""},
		"pointer null":          {"json:/id", `{"id":null}`, nil, "", envelope.RuleKeyMissing},
		"pointer nowhere":       {"json:/id/x", `{"id":1}`, nil, "", envelope.RuleKeyMissing},
		"pointer bad index":     {"json:/01", `[1,2]`, nil, "", envelope.RuleKeyMissing},
		"pointer fraction":      {"json:/id", `{"id":1.0}`, nil, "", envelope.RuleKeyNotText},
		"pointer exponent":      {"json:/id", `{"id":1e3}`, nil, "", envelope.RuleKeyNotText},
		"pointer bool":          {"json:/id", `{"id":true}`, nil, "", envelope.RuleKeyNotText},
		"pointer object":        {"json:/id", `{"id":{}}`, nil, "", envelope.RuleKeyNotText},
		"pointer not JSON":      {"json:/id", `nope`, nil, "", envelope.RuleKeyNotText},
		"pointer two documents": {"json:/id", `{"id":"a"}{"id":"b"}`, nil, "", envelope.RuleKeyNotText},
		"pointer escaped NUL":   {"json:/id", `{"id":"a\u0000b"}`, nil, "", envelope.RuleKeyControl},
		"pointer surrogate":     {"json:/id", `{"id":"a\ud800"}`, nil, "", envelope.RuleKeyInvalidUTF8},
		"pointer broken UTF-8":  {"json:/id", "{\"id\":\"a\xff\"}", nil, "", envelope.RuleKeyInvalidUTF8},
		"event kafka":           {"cloudevents", "", []string{"ce_source", "/s", "ce_id", "1"}, "/s 1", ""},
		"event http":            {"cloudevents", "", []string{"ce-source", "/s", "ce-id", "1"}, "/s 1", ""},
		"event amqp":            {"cloudevents", "", []string{"cloudEvents:source", "/s", "cloudEvents:id", "1"}, "/s 1", ""},
		"event structured":      {"cloudevents", `{"specversion":"1.0","source":"/s","id":"1"}`, nil, "/s 1", ""},
		"event without source":  {"cloudevents", "{}", []string{"ce_id", "1"}, "", envelope.RuleKeyMissing},
		"event blank id":        {"cloudevents", "", []string{"ce_source", "/s", "ce_id", " "}, "", envelope.RuleKeyMissing},
		"event id control":      {"cloudevents", "", []string{"ce_source", "/s", "ce_id", "1\n"}, "", envelope.RuleKeyControl},
		"event id of wrong":     {"cloudevents", `{"specversion":"1.0","source":"/s","id":true}`, nil, "", envelope.RuleKeyNotText},
		"event not JSON":        {"cloudevents", `nope`, nil, "", envelope.RuleKeyMissing},
		"event batch":           {"cloudevents", `[]`, []string{"Content-Type", "application/cloudevents-batch+json; charset=utf-8"}, "", envelope.RuleKeyNotText},
		"event long source": {"cloudevents", "", []string{"ce_source", long, "ce_id", "1"},
			"cloudevents:20cbd6dbcb29f3a2812fce5a42496c31c1ba2ce92f9d95fc1741851ef329c4cc", ""},
	} {
		t.Run(name, func(t *testing.T) {
			key, origin, err := extract(t, c.spec, received(c.payload, c.metadata...), d, envelope.MissingReject)
			requireRule(t, c.rule, err)
			if c.rule != "" {
				return
			}
			require.Equal(t, envelope.KeyGiven, origin)
			require.Equal(t, c.key, key)
		})
	}
}

func TestKeySourcesWithoutAKey(t *testing.T) {
	t.Parallel()
	for _, spec := range []string{"", "metadata:x", "cloudevents", "amqp-message-id", "nats-msg-id", "sqs-deduplication-id", "kafka-record-key", "position"} {
		_, _, err := extract(t, spec, received("{}"), envelope.Delivery{}, "")
		requireRule(t, envelope.RuleKeyMissing, err)
	}
}

func TestEventsOfTwoSourcesNeverShareAKey(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, c := range [][2]string{{"/a", "b c"}, {"/a b", "c"}, {"/a", "b  c"}, {"/a b c", "d"}, {"/a b", "c d"}} {
		key, _, err := extract(t, "cloudevents", received("", "ce_source", c[0], "ce_id", c[1]), envelope.Delivery{}, "")
		require.NoError(t, err)
		require.False(t, seen[key], "%q", c)
		seen[key] = true
	}
}

func TestParseKeySourceRefuses(t *testing.T) {
	t.Parallel()
	for _, spec := range []string{"metadata", "metadata:", "json", "json:", "json:a", "json:/a~2", "position:x", "Position", "header:x", "cloudevents:1"} {
		_, err := envelope.ParseKeySource(spec)
		require.Error(t, err, spec)
	}
	_, err := envelope.ParseMissingKey("drop")
	require.Error(t, err)
	m, err := envelope.ParseMissingKey("")
	require.NoError(t, err)
	require.Equal(t, envelope.MissingReject, m)
}

func TestKeySourceCaveats(t *testing.T) {
	t.Parallel()
	require.Contains(t, envelope.KeySourceCaveat("position"), "second sending is not")
	require.NotEmpty(t, envelope.KeySourceCaveat("kafka-record-key"))
	require.NotEmpty(t, envelope.KeySourceCaveat("amqp-message-id"))
	require.Empty(t, envelope.KeySourceCaveat(""))
	require.Empty(t, envelope.KeySourceCaveat("metadata:order-id"))
}

func TestAFunctionAsKeySource(t *testing.T) {
	t.Parallel()
	broken := errors.New("lookup failed")
	_, _, err := envelope.ExtractKey(received(""), envelope.Delivery{}, func(*message.Message, envelope.Delivery) (string, bool, error) {
		return "", false, broken
	}, envelope.MissingPass)
	require.ErrorIs(t, err, broken)
	var v *envelope.Violation
	require.False(t, errors.As(err, &v))
}

func TestDerivedKeys(t *testing.T) {
	t.Parallel()
	derive := func(payload string) string {
		key, _, err := extract(t, "", received(payload), envelope.Delivery{}, envelope.MissingDerive)
		require.NoError(t, err)
		return key
	}
	require.Equal(t, derive(`{"a":1,"b":2}`), derive(` {"b":2.0, "a":1}`))
	require.NotEqual(t, derive(`{"a":1}`), derive(`{"a":2}`))
	require.NotEqual(t, derive(`{"minor":9007199254740992}`), derive(`{"minor":9007199254740993}`), "a double holds both as one number")
	require.NotEqual(t, derive(`a`), derive(`b`))
	require.Equal(t, "derived:payload:ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb", derive(`a`))
	require.Equal(t, "derived:json:43258cff783fe7036d8a43033f830adfc60ec037382473548ac742b888292777", derive(`{"b": 2, "a": 1}`))
}
