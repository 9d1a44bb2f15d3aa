package config_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/config"
)

// everything has a field of each kind that sections may have.
type everything struct {
	Shared       `yaml:",inline"`
	Text         string
	Key          config.Secret
	Flag         bool
	Small        int8
	Port         uint16
	Ratio        float32
	Wait         time.Duration
	Days         config.Duration
	Size         int `check:"size"`
	IP           netip.Addr
	Opt          *bool
	Sub          *sub
	Names        []string
	Waits        []time.Duration
	Subs         []sub
	ByName       map[string]sub
	Plain        any
	OTLPEndpoint string
	Hidden       string `yaml:"-"`
}

type Shared struct {
	Host string `yaml:"host"`
}

type sub struct {
	A string `yaml:"a"`
	B int    `yaml:"b"`
}

func decode(t *testing.T, into any, content string, env ...string) error {
	t.Helper()
	c, err := load(t, content, env...)
	require.NoError(t, err)
	return c.Plugins["payments"].Decode(into)
}

func TestSectionDecode(t *testing.T) {
	t.Parallel()
	got := everything{Text: "default", ByName: map[string]sub{"x": {A: "kept", B: 1}}, Sub: &sub{A: "kept"}}
	require.NoError(t, decode(t, &got, `
plugins:
  payments:
    config:
      host: h
      key: 0123
      flag: true
      small: -128
      port: 65535
      ratio: .5
      wait: 1m30s
      days: 2d
      size: 4KiB
      ip: 10.0.0.1
      opt: false
      sub: {b: 2}
      names: [a, 1, true]
      waits: [1s, 2d]
      subs: [{a: x}, {b: 3}]
      by_name: {x: {b: 5}, "y z": {a: q}}
      plain: {n: 1, f: 1.5, s: "1", l: [null, true]}
      otlp_endpoint: word
`))
	no := false
	require.Equal(t, everything{
		Shared: Shared{"h"}, Text: "default", Key: "0123", Flag: true, Small: -128, Port: 65535, Ratio: 0.5, Wait: 90 * time.Second,
		Days: 2 * config.Day, Size: 4096, IP: netip.MustParseAddr("10.0.0.1"), Opt: &no, Sub: &sub{"kept", 2}, Names: []string{"a", "1", "true"},
		Waits: []time.Duration{time.Second, 48 * time.Hour}, Subs: []sub{{A: "x"}, {B: 3}},
		ByName:       map[string]sub{"x": {"kept", 5}, "y z": {A: "q"}},
		Plain:        map[string]any{"n": int64(1), "f": 1.5, "s": "1", "l": []any{nil, true}},
		OTLPEndpoint: "word",
	}, got)
}

func TestSectionOverrides(t *testing.T) {
	t.Parallel()
	const in = "ONCEMILL_PLUGINS__PAYMENTS__CONFIG__"
	var got everything
	require.NoError(t, decode(t, &got, "plugins: {payments: {config: {names: [a], by_name: {my-name: {a: x}}}}}",
		in+"HOST=h", in+"NAMES=b, c,", in+"WAITS=1s", in+"BY_NAME__MY_NAME__B=7", in+"BY_NAME__OTHER__A=y", in+"SUB__A=", in+"OPT=true", in+"PLAIN=12", in+"TEXT=a=b"))
	yes := true
	require.Equal(t, everything{
		Shared: Shared{"h"}, Names: []string{"b", "c"}, Waits: []time.Duration{time.Second}, ByName: map[string]sub{"my-name": {"x", 7}, "other": {A: "y"}},
		Sub: &sub{}, Opt: &yes, Plain: "12", Text: "a=b",
	}, got)
}

func TestSectionRefuses(t *testing.T) {
	t.Parallel()
	for content, want := range map[string]string{
		"small: 128":           "out of range",
		"port: -1":             "out of range",
		"port: 0x10":           "not a whole number",
		"port: 1_000":          "not a whole number",
		"port: 1.0":            "not a whole number",
		"ratio: .nan":          "not a number",
		"ratio: x":             "not a number",
		"flag: True":           "did you mean true?",
		"flag: off":            "did you mean false?",
		"flag: maybe":          "neither true nor false",
		"wait: 5":              "has no unit",
		"wait: 0":              "has no unit",
		"wait: 5 apples":       "is not a duration such as",
		"wait: 1h2d":           "is not a duration such as",
		"size: 1MB2":           "is not a size",
		"size: 9999999999999G": "is not a size",
		"size: 0":              "greater than zero",
		"ip: nowhere":          "not valid",
		"sub: 1":               "is a section",
		"subs: [1]":            "is a section",
		"subs: [{c: 1}]":       `subs[0].c: unknown name`,
		"by_name: {x: {c: 1}}": "by_name.x.c: unknown name",
		"hidden: x":            "unknown name",
		"text: {a: b}":         "must be a text",
		"wait: [1s]":           "must be a duration",
		"port: {}":             "must be a number",
		"opt: []":              "must be true or false",
		"names: {a: b}":        "is a list",
		"text: *nothing":       "no anchor",
		"text: ~":              "has no value",
	} {
		t.Run(content, func(t *testing.T) {
			c, err := load(t, "plugins: {payments: {config: {"+content+"}}}")
			if err == nil {
				err = c.Plugins["payments"].Decode(&everything{})
			}
			require.ErrorContains(t, err, want)
			require.ErrorContains(t, err, "oncemill.yaml:1")
		})
	}
}

func TestSectionDecodeNeedsAPointer(t *testing.T) {
	t.Parallel()
	require.Error(t, config.Section{}.Decode(everything{}))
	require.Error(t, config.Section{}.Decode(nil))
	require.NoError(t, config.Section{}.Decode(&everything{}))
	require.ErrorContains(t, decode(t, &struct{ C chan int }{}, "plugins: {payments: {config: {c: 1}}}"), "cannot be configured")
	require.True(t, config.Section{}.IsEmpty())
}

func TestSecretFiles(t *testing.T) {
	t.Parallel()
	file := write(t, "first\r\n")
	source := config.SecretSource{File: file}
	text, err := source.Read()
	require.NoError(t, err)
	require.Equal(t, "first", text)

	rewrite(t, file, " second \n\n")
	text, err = source.Read()
	require.NoError(t, err)
	require.Equal(t, " second \n", text, "it is read again, and only its last line break goes")

	rewrite(t, file, "\n")
	_, err = source.Read()
	require.ErrorContains(t, err, "is empty")
	_, err = config.SecretSource{File: file, Value: "x"}.Read()
	require.ErrorContains(t, err, "keep one")
	_, err = config.SecretSource{File: file + "x"}.Read()
	require.Error(t, err)
	text, err = config.SecretSource{}.Read()
	require.NoError(t, err)
	require.Empty(t, text)
}
