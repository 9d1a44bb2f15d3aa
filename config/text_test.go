package config_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/config"
)

func rewrite(t *testing.T, file, content string) {
	t.Helper()
	require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
}

func TestDurations(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]config.Duration{
		"90d": 90 * config.Day, "1d12h": 36 * config.Hour, "0.5d": 12 * config.Hour, "24h": config.Day, "1h30m": 90 * config.Minute,
		"500ms": 500 * config.Millisecond, "-1d": -config.Day, "0s": 0, "-1d1h": -25 * config.Hour, "106751d": 106751 * config.Day,
	} {
		got, err := config.ParseDuration(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
		again, err := config.ParseDuration(got.String())
		require.NoError(t, err, got.String())
		require.Equal(t, got, again)
	}
	for _, text := range []string{"", "24", "0", "1.5", "d", "1d-1h", "1d+1h", "1dd", "1h1d", "106752d", "106751d24h", "1w", "infd", "NaN", "1e400d", "24 h"} {
		_, err := config.ParseDuration(text)
		require.Error(t, err, text)
	}
	for d, want := range map[config.Duration]string{
		7 * config.Day: "7d", config.Day: "1d", 90 * config.Minute: "1h30m", config.Hour: "1h", config.Minute: "1m", 0: "0s", 61 * config.Second: "1m1s",
		config.Hour + config.Second: "1h0m1s", config.Second / 2: "500ms",
	} {
		require.Equal(t, want, d.String())
	}
}

func TestF083RedactText(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"amqp://guest:pw@host:5672/vhost":                 "amqp://guest:redacted@host:5672/vhost",
		"amqp://guest@host":                               "amqp://guest@host",
		"amqp://host:5672/":                               "amqp://host:5672/",
		"amqp://u:p@ss@host/":                             "amqp://u:redacted@host/",
		"amqp://u:p/ss@host:1/v":                          "amqp://u:redacted@host:1/v",
		"amqp://u:p?s#s@host":                             "amqp://u:redacted@host",
		"amqp://u:a@p/b@host":                             "amqp://u:redacted@host",
		"amqp://[::1]:5672/a@b":                           "amqp://[::1]:5672/a@b",
		"http://host/?mail=a@b":                           "http://host/?mail=a@b",
		"http://host:80/?mail=a@b":                        "http://host:redacted@b",
		"amqp://u:12/34@host":                             "amqp://u:redacted@host",
		"nats://token@host:4222":                          "nats://redacted@host:4222",
		"nats://a:pw@one:1,nats://b:pw@two:2":             "nats://a:redacted@one:1,nats://b:redacted@two:2",
		"postgres://u:pw@h1:1,h2:2/db?sslpassword=pw&a=b": "postgres://u:redacted@h1:1,h2:2/db?sslpassword=redacted&a=b",
		"host=h password=pw user=u":                       "host=h password=redacted user=u",
		"host=h password = 'p w\\'x' user=u":              "host=h password = redacted user=u",
		"host=h passfile=/run/pass password_file=/p":      "host=h passfile=/run/pass password_file=/p",
		"u:p@ss:w@tcp(h:3306)/db":                         "u:redacted@tcp(h:3306)/db",
		"Server=h;Pwd=pw;Database=d":                      "Server=h;Pwd=redacted;Database=d",
		"redis://:pw@h/0":                                 "redis://:redacted@h/0",
		"file:data.db?_pragma=x":                          "file:data.db?_pragma=x",
		"plain text":                                      "plain text",
	} {
		require.Equal(t, want, config.RedactText(text), text)
	}
}

func FuzzRedactText(f *testing.F) {
	for _, pw := range []string{"s3cr3t-Zq!", "s3cr3t%2DZq%21", "p@ss:w/rd", "12/34", "a b\n", "a?b#c", "[x]", "x,y"} {
		f.Add(pw)
	}
	f.Fuzz(func(t *testing.T, rest string) {
		// The mark begins the password, so that no part of the host can be taken for it.
		password := "MARK" + rest
		if strings.Contains(rest, "://") {
			t.Skip()
		}
		require.NotContains(t, config.RedactText("amqp://guest:"+password+"@host:5672/vhost"), "MARK")
		require.NotContains(t, config.RedactText("postgres://u:"+password+"@h1:1/db?a=b"), "MARK")
	})
}
