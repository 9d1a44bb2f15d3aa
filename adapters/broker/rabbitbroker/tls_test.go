package rabbitbroker_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/adapters/broker/rabbitbroker"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/outbox"
)

// The user and the virtual host of tests with a server of their own. Both need escaping in a URL.
const (
	shopPassword = "s3cr3t-Zq!/?#@ä"
	shopVHost    = "shop/payments"
)

// rights is what a user may configure, write and read, as patterns.
type rights struct {
	Configure string `json:"configure"`
	Write     string `json:"write"`
	Read      string `json:"read"`
}

// setUser makes a user or gives it another password.
func setUser(t *testing.T, server testenv.Rabbit, user, password string) {
	t.Helper()
	api(t, server, http.MethodPut, "/users/"+user, map[string]string{"password": password, "tags": ""}, nil)
}

func grant(t *testing.T, server testenv.Rabbit, vhost, user string, r rights) {
	t.Helper()
	api(t, server, http.MethodPut, "/permissions/"+url.PathEscape(vhost)+"/"+user, r, nil)
}

// secure is a server with TLS, a user and a virtual host.
type secure struct {
	*testenv.Server
	certs testenv.Certificates
}

func newSecure(t *testing.T, env ...string) secure {
	t.Helper()
	certs := testenv.NewCertificates(t)
	s := secure{Server: testenv.PrivateTLS(t, "rabbitmq", certs, env...), certs: certs}
	setUser(t, s.rabbit(), "shop", shopPassword)
	api(t, s.rabbit(), http.MethodPut, "/vhosts/"+url.PathEscape(shopVHost), nil, nil)
	grant(t, s.rabbit(), shopVHost, "shop", rights{".*", ".*", ".*"})
	return s
}

func (s secure) rabbit() testenv.Rabbit { return testenv.Rabbit{API: s.API, VHost: shopVHost} }

// config is one that works, changed.
func (s secure) config(password string, change func(*rabbitbroker.Config)) rabbitbroker.Config {
	return defaults(func(c *rabbitbroker.Config) {
		c.URL = s.url(s.TLS, password)
		c.TLS.CAFile = s.certs.CA
		change(c)
	})
}

func (s secure) url(host, password string) string {
	return "amqps://shop:" + url.QueryEscape(password) + "@" + host + "/" + url.PathEscape(shopVHost)
}

// works publishes a message and consumes it.
func works(t *testing.T, c rabbitbroker.Config) {
	t.Helper()
	b := open(t, c)
	topic := testenv.Name(t, "tls")
	declare(t, b, topic, "g")
	_, got := subscribe(t, b, broker.Subscription{Topic: topic, Group: "g"})
	require.NoError(t, b.Publisher().Publish(topic, newMessage("p")))
	require.True(t, next(t, got).Ack())
	require.NoError(t, b.Close())
}

// refused requires that nothing opens, with an error that has the advice and no secret.
func refused(t *testing.T, name string, c rabbitbroker.Config, advice string) {
	t.Helper()
	var log lines
	_, err := rabbitbroker.Open(t.Context(), c, broker.Options{Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	require.ErrorContains(t, err, advice, name)
	for _, text := range []string{fmt.Sprintf("%+v", err), log.String()} {
		for _, secret := range []string{"s3cr3t", url.QueryEscape(shopPassword)} {
			require.NotContains(t, text, secret, name)
		}
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts a server of its own")
	}
	server := newSecure(t)
	byAddress := server.url(strings.Replace(server.TLS, "localhost", "127.0.0.1", 1), shopPassword)
	works(t, server.config(shopPassword, func(*rabbitbroker.Config) {}))
	works(t, server.config(shopPassword, func(c *rabbitbroker.Config) { c.URL, c.TLS.ServerName = byAddress, "localhost" }))

	for name, r := range map[string]struct {
		password string
		change   func(*rabbitbroker.Config)
		advice   string
	}{
		"unknown authority": {shopPassword, func(c *rabbitbroker.Config) { c.TLS.CAFile = "" }, "set tls.ca_file"},
		"wrong authority":   {shopPassword, func(c *rabbitbroker.Config) { c.TLS.CAFile = server.certs.OtherCA }, "set tls.ca_file"},
		"no authority":      {shopPassword, func(c *rabbitbroker.Config) { c.TLS.CAFile = server.certs.ServerKey }, "holds no certificate"},
		"wrong name":        {shopPassword, func(c *rabbitbroker.Config) { c.URL = byAddress }, "set tls.server_name"},
		"wrong password":    {shopPassword + "x", func(*rabbitbroker.Config) {}, "check them in url"},
		"wrong vhost":       {shopPassword, func(c *rabbitbroker.Config) { c.URL += "x" }, "grant this user permissions"},
		"wrong port": {shopPassword, func(c *rabbitbroker.Config) {
			plain, err := url.Parse(server.Address)
			require.NoError(t, err)
			c.URL, c.TLS.ServerName = server.url(plain.Host, shopPassword), "localhost"
		}, "use its TLS port"},
	} {
		refused(t, name, server.config(r.password, r.change), r.advice)
	}
	t.Run("PasswordChangesInMidLoad", func(t *testing.T) { passwordChanges(t, server) })
}

// passwordChanges: the password is changed and the connections are closed, and only then the file tells the new one.
func passwordChanges(t *testing.T, server secure) {
	file := filepath.Join(t.TempDir(), "url")
	tell := func(password string) {
		require.NoError(t, os.WriteFile(file+".new", []byte(server.url(server.TLS, password)+"\n"), 0o600))
		require.NoError(t, os.Rename(file+".new", file))
	}
	tell(shopPassword)
	b := open(t, server.config("unused", func(c *rabbitbroker.Config) { c.URLFile = file }))
	topic := testenv.Name(t, "rotated")
	declare(t, b, topic, "g")
	sub, got := subscribe(t, b, broker.Subscription{Topic: topic, Group: "g"})
	exchange := func() {
		msg := newMessage("p")
		eventually(t, func() error { return b.Publisher().Publish(topic, msg) })
		for received := ""; received != msg.UUID; { // an earlier attempt may have left a copy
			m := next(t, got)
			received = m.UUID
			require.True(t, m.Ack())
		}
	}
	exchange()
	for _, password := range []string{"second", "third"} {
		setUser(t, server.rabbit(), "shop", password)
		closed := 0
		eventually(t, func() error {
			if closed += cutConnections(t, server.rabbit(), ""); closed < 2 {
				return fmt.Errorf("%d connections are closed", closed)
			}
			return nil
		})
		require.Eventually(t, func() bool { return sub.Consuming() != nil }, patience, time.Millisecond)
		require.ErrorIs(t, b.Publisher().Publish(topic, newMessage("refused")), outbox.ErrUnavailable)
		tell(password)
		exchange()
		eventually(t, sub.Consuming)
	}
	setUser(t, server.rabbit(), "shop", shopPassword)
}

func TestTLSClientCertificate(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts a server of its own")
	}
	server := newSecure(t, "ONCEMILL_TEST_TLS_CLIENTS=true")
	ours := func(c *rabbitbroker.Config) {
		c.TLS.CertFile, c.TLS.KeyFile = server.certs.Client, server.certs.ClientKey
	}
	works(t, server.config(shopPassword, ours))
	refused(t, "no certificate", server.config(shopPassword, func(*rabbitbroker.Config) {}), "set tls.cert_file and tls.key_file")
	strangers := testenv.NewCertificates(t)
	refused(t, "a stranger's certificate", server.config(shopPassword, func(c *rabbitbroker.Config) {
		c.TLS.CertFile, c.TLS.KeyFile = strangers.Client, strangers.ClientKey
	}), "tls.cert_file and tls.key_file to one that it does")
	refused(t, "wrong password", server.config(shopPassword+"x", ours), "check them in url")
}
