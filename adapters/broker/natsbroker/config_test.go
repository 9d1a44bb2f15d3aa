package natsbroker

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
)

func decoder(text string) func(any) error {
	return func(into any) error {
		if text == "" { // an empty document would reset the defaults
			return nil
		}
		return yaml.UnmarshalWithOptions([]byte(text), into, yaml.Strict())
	}
}

func TestConfigDecodes(t *testing.T) {
	t.Parallel()
	cfg, err := decodeExternal(decoder(`
url: nats://one:4222,tls://two
topology: verify
replicas: 3
max_age: 48h
ack_wait: 10s
tls: {ca: ca.pem, cert: cert.pem, key: key.pem}
topics: {orders.created: {stream: ORDERS, subject: shop.orders.created, durables: {billing: BILLING}}}
`))
	require.NoError(t, err)
	require.Equal(t, place{topic: "orders.created", stream: "ORDERS", subject: "shop.orders.created"}, cfg.place("orders.created"))
	require.Equal(t, "BILLING", cfg.durable("orders.created", "billing"))
	require.Equal(t, "other_group", cfg.durable("orders.created", "other.group"))
	require.Equal(t, place{topic: "x.y", stream: "x_y", subject: "x.y"}, cfg.place("x.y"))
	where, err := cfg.servers()
	require.NoError(t, err)
	require.Equal(t, []string{"nats://one:4222", "tls://two:4222"}, where.urls)
	caps := cfg.capabilities(true, 1<<20, 4<<20)
	require.Equal(t, broker.OrderByKey, caps.Ordering)
	require.NoError(t, Factory().Check(decoder("")))
	require.NoError(t, EmbeddedFactory().Check(decoder("port: 4333")))
}

// Check reports every problem, and no secret.
func TestConfigRefuses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"topology: create":                      "topology",
		"replicas: 9":                           "replicas",
		"max_age: 5ms":                          "max_age",
		"ack_wait: 5ms":                         "ack_wait",
		"url: http://h":                         "scheme",
		"url: ','":                              "no server",
		"{user: u, creds_file: f}":              "only one",
		"{password: p}":                         "user",
		"{domain: hub, api_prefix: JS.hub.API}": "only one",
		"domain: a.b":                           "one word",
		"api_prefix: 'JS.>'":                    "words with dots",
		"{user: u, password: p, password_file: f}": "only one",
		"tls: {cert: c}":                      "belong together",
		"topics: {'a b': {}}":                 "topic",
		"topics: {a: {stream: a.b}}":          "name of a stream",
		"topics: {a: {subject: a.*}}":         "subject to publish",
		"topics: {a: {durables: {g: 'x y'}}}": "name of a stream or consumer",
		"url: 'nats://u:s3cr3t-%zz@h'":        "percent-encoded",
	} {
		err := Factory().Check(decoder(text))
		require.ErrorContains(t, err, want, text)
		require.NotContains(t, err.Error(), "s3cr3t")
	}
	require.ErrorContains(t, EmbeddedFactory().Check(decoder("port: 70000")), "port")
	require.Error(t, EmbeddedFactory().Check(decoder("prot: 1")))
	err := Factory().Check(decoder("{topology: x, replicas: 0}"))
	require.ErrorContains(t, err, "topology")
	require.ErrorContains(t, err, "replicas")
}

// F083: neither form of a password appears in an error or a log; the host does.
func TestF083NoSecretInErrors(t *testing.T) {
	t.Parallel()
	const password = "s3cr3t-Zq!ü"
	// A server that answers and closes, as a wrong port may.
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
			_ = conn.Close()
		}
	}()
	file := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(file, []byte(password+"\n"), 0o600))
	host := listener.Addr().String()
	for _, configure := range []func(*Config){
		func(c *Config) { c.URL = "nats://user:" + url.QueryEscape(password) + "@" + host },
		func(c *Config) { c.URL = "nats://" + url.QueryEscape(password) + "@" + host },
		func(c *Config) { c.URL, c.User, c.Password = "nats://"+host, "user", password },
		func(c *Config) { c.URL, c.User, c.PasswordFile = "nats://"+host, "user", file },
	} {
		var logged bytes.Buffer
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		_, err := Factory().Open(ctx, func(into any) error {
			configure(into.(*Config))
			return nil
		}, broker.Options{Logger: slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelDebug}))})
		cancel()
		require.ErrorContains(t, err, host)
		for _, secret := range []string{password, url.QueryEscape(password), "s3cr3t"} {
			require.NotContains(t, err.Error(), secret)
			require.NotContains(t, logged.String(), secret)
		}
	}
}

// A password is read again for each connection.
func TestPasswordRotates(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(file, []byte("one\n"), 0o600))
	cfg := Config{User: "u", PasswordFile: file}
	_, password := cfg.login()
	require.Equal(t, "one", password)
	require.NoError(t, os.WriteFile(file, []byte("two\r\n"), 0o600))
	_, password = cfg.login()
	require.Equal(t, "two", password)
}
