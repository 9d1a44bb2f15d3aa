package envelope_test

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/envelope"
)

func printOf(t *testing.T, spec, payload string) string {
	t.Helper()
	f, err := envelope.ParseFingerprint(spec)
	require.NoError(t, err)
	return f(received(payload, "traceparent", "00-"+payload))
}

func TestFingerprints(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spec, a, b string
		same       bool
	}{
		"payload equal":              {"payload", `{"a":1}`, `{"a":1}`, true},
		"payload space":              {"payload", `{"a":1}`, `{"a": 1}`, false},
		"F010 another amount":        {"payload", `{"amount":"100.00"}`, `{"amount":"250.00"}`, false},
		"json order and space":       {"json", `{"a":1,"b":[true,null]}`, "{ \"b\" : [true , null],\n\"a\":1.0 }", true},
		"json value":                 {"json", `{"a":1}`, `{"a":2}`, false},
		"json escapes":               {"json", `{"a":"é"}`, `{"a":"\u00e9"}`, true},
		"json large integers":        {"json", `{"a":9007199254740993}`, `{"a":9007199254740992}`, false},
		"json long fraction":         {"json", `[0.1]`, `[0.1000000000000000055]`, false},
		"json zeros":                 {"json", `[1000, 0.0, 1.50]`, `[1e3, -0, 15e-1]`, true},
		"json out of range":          {"json", `[1e999]`, `[1e998]`, false},
		"json bytes equal":           {"json", `nope`, `nope`, true},
		"json bytes differ":          {"json", `nope`, `nope `, false},
		"json member twice":          {"json", `{"a":1,"a":2}`, `{"a":2}`, false},
		"pointers stamp":             {"json:/id,/amount", `{"id":1,"amount":2,"sent":3}`, `{"sent":4,"amount":2,"id":1}`, true},
		"pointers value":             {"json:/id,/amount", `{"id":1,"amount":2}`, `{"id":1,"amount":3}`, false},
		"pointers absent":            {"json:/id,/amount", `{"id":1,"amount":null}`, `{"id":1}`, false},
		"pointers exchanged":         {"json:/a,/b", `{"a":1}`, `{"b":1}`, false},
		"pointers nested":            {"json:/a/b", `{"a":{"b":{"x":1,"y":2}}}`, `{"a":{"b":{"y":2,"x":1}}}`, true},
		"pointers none there":        {"json:/id", `{"a":1}`, `{"a":2}`, false},
		"pointers member twice":      {"json:/id", `{"id":1,"id":2}`, `{"id":2}`, false},
		"pointers surrogates differ": {"json:/id", `{"id":"\ud800"}`, `{"id":"\ud801"}`, false},
		"pointers large integers":    {"json:/id", `{"id":9007199254740993}`, `{"id":9007199254740992}`, false},
		"off":                        {"off", `a`, `b`, true},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := printOf(t, c.spec, c.a), printOf(t, c.spec, c.b)
			require.Equal(t, c.same, a == b)
			require.Equal(t, c.same, envelope.SameFingerprint(a, b))
		})
	}
}

// TestFingerprintsNeverChange holds golden values: they are stored with keys. A new way of taking one needs a new version.
func TestFingerprintsNeverChange(t *testing.T) {
	t.Parallel()
	require.Equal(t, "payload:1:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", printOf(t, "", "abc"), "plain SHA-256")
	require.Equal(t, "json:1:2fd1427047ff705dbec93e3a5706b7e5448f4002889ca2a9933fb2f9cbd10bb2", printOf(t, "json", `{"b": 2, "a": 1}`))
	require.Equal(t, "json:1:7a571479fb4b82b610da2dd4f72e2393b623111272feb4bf974a4fa053975141", printOf(t, "json", `abc`))
	require.Equal(t, "json-87da575e:1:b556bc55ccb3c88d00464fa91f72adf0dca79c8aff34bd1126dbe1fd842d8be5", printOf(t, "json:/a,/b", `{"b": 2, "a": 1, "c": 3}`))
	require.Empty(t, printOf(t, "off", "abc"))
}

// TestFingerprintIsOfTheCanonicalForm takes the examples of RFC 8785 whose numbers a double holds exactly.
func TestFingerprintIsOfTheCanonicalForm(t *testing.T) {
	t.Parallel()
	for written, canonical := range map[string]string{
		`{"\u20ac":"Euro Sign","\r":"Carriage Return","\ufb33":"Hebrew Letter Dalet With Dagesh","1":"One","\ud83d\ude00":"Emoji: Grinning Face","\u0080":"Control","\u00f6":"Latin Small Letter O With Diaeresis"}`: "{\"\\r\":\"Carriage Return\",\"1\":\"One\",\"\u0080\":\"Control\",\"ö\":\"Latin Small Letter O With Diaeresis\",\"€\":\"Euro Sign\",\"\U0001f600\":\"Emoji: Grinning Face\",\"\ufb33\":\"Hebrew Letter Dalet With Dagesh\"}",
		`{"numbers": [1E30, 4.50, 2e-3, 0.000000000000000000000000001], "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/", "literals": [null, true, false]}`:                                                 `{"literals":[null,true,false],"numbers":[1e+30,4.5,0.002,1e-27],"string":"€$\u000f\nA'B\"\\\\\"/"}`,
	} {
		want := printOf(t, "json", canonical)
		require.Equal(t, want, printOf(t, "json", written))
		sum := sha256.Sum256([]byte("\x00\x00\x00\x00\x00\x00\x00\x09canonical" + length(canonical) + canonical))
		require.Equal(t, "json:1:"+hex.EncodeToString(sum[:]), want, "the canonical text is its own canonical form")
	}
}

func length(s string) string {
	return string(binary.BigEndian.AppendUint64(nil, uint64(len(s))))
}

func TestSameFingerprintAfterAChange(t *testing.T) {
	t.Parallel()
	payload := `{"a":1,"b":2}`
	specs := []string{"payload", "json", "json:/a", "json:/b", "json:/a,/b", "off"}
	for _, a := range specs {
		for _, b := range specs {
			require.True(t, envelope.SameFingerprint(printOf(t, a, payload), printOf(t, b, payload)), "%s, then %s", a, b)
		}
	}
	require.True(t, envelope.SameFingerprint("json:1:aa", "json:2:bb"), "another version is not compared")
	require.False(t, envelope.SameFingerprint("json:1:aa", "json:1:bb"))
	require.False(t, envelope.SameFingerprint("aa", "bb"), "prints without a kind are compared")
}

func TestParseFingerprintRefuses(t *testing.T) {
	t.Parallel()
	for _, spec := range []string{"md5", "json:", "json:a", "json:/a,", "json:/a,b", "json:/~", "Payload"} {
		_, err := envelope.ParseFingerprint(spec)
		require.Error(t, err, spec)
	}
}

func FuzzFingerprintJSON(f *testing.F) {
	for _, seed := range []string{`{"a":1}`, `[1e400]`, `"\ud800"`, `{"a":`, ``, `0.1e-7`, `{"a":1,"a":1}`, `[-0.0,1E+2,123456789012345678901]`} {
		f.Add(seed)
	}
	whole, err := envelope.ParseFingerprint("json")
	require.NoError(f, err)
	parts, err := envelope.ParseFingerprint("json:/a,/0")
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, payload string) {
		for _, print := range []envelope.Fingerprint{whole, parts} {
			p := print(received(payload))
			require.Equal(t, p, print(received(payload)))
			require.Regexp(t, `^json(-[0-9a-f]{8})?:1:[0-9a-f]{64}$`, p)
		}
	})
}
