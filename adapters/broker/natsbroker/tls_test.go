package natsbroker

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/internal/testenv"
)

const (
	shopPassword = "s3cr3t-Zq!"
	longWait     = time.Minute
)

// secureServer runs a server with JetStream whose listener speaks TLS, and returns its address as localhost:port.
func secureServer(t *testing.T, certs testenv.Certificates, o *server.Options) (*server.Server, string) {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(certs.Server, certs.ServerKey)
	require.NoError(t, err)
	ca, err := os.ReadFile(certs.CA)
	require.NoError(t, err)
	pool := x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM(ca))
	clients := tls.NoClientCert
	if o.TLSVerify {
		clients = tls.RequireAndVerifyClientCert
	}
	o.TLS, o.TLSTimeout = true, 20
	o.TLSConfig = &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: clients, MinVersion: tls.VersionTLS12}
	o.Host, o.Port, o.NoSigs, o.NoLog = "127.0.0.1", server.RANDOM_PORT, true, true
	o.JetStream, o.StoreDir, o.AuthTimeout = true, t.TempDir(), 30
	s, err := server.NewServer(o)
	require.NoError(t, err)
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	require.True(t, s.ReadyForConnections(longWait))
	return s, strings.Replace(s.Addr().String(), "127.0.0.1", "localhost", 1)
}

// works makes a topic, publishes a message and consumes it.
func works(t *testing.T, configure func(*Config)) {
	t.Helper()
	b := openTest(t, Factory(), configure, "")
	defer func() { require.NoError(t, b.Close()) }()
	newCourier(t, b).exchange()
}

// courier is a broker with a topic of the test's own that a group consumes.
type courier struct {
	t     *testing.T
	b     broker.Broker
	topic string
	take  func() (uuid string)
}

func newCourier(t *testing.T, b broker.Broker) *courier {
	t.Helper()
	sub := broker.Subscription{Topic: testenv.Name(t, "tls"), Group: "g"}
	require.NoError(t, b.Declare(t.Context(), sub.Topic, []broker.Subscription{sub}))
	s, err := b.Subscriber(sub)
	require.NoError(t, err)
	msgs, err := s.Subscribe(t.Context(), sub.Topic)
	require.NoError(t, err)
	return &courier{t: t, b: b, topic: sub.Topic, take: func() string {
		select {
		case msg := <-msgs:
			require.True(t, msg.Ack())
			return msg.UUID
		case <-time.After(longWait):
			require.FailNow(t, "no message came")
			return ""
		}
	}}
}

// exchange publishes until it is confirmed, and takes the message.
func (c *courier) exchange() {
	c.t.Helper()
	msg := one("p")
	testenv.Eventually(c.t, longWait, func() error { return c.b.Publisher().Publish(c.topic, msg) })
	for c.take() != msg.UUID { // what was published before
	}
}

// refused requires that nothing opens, with an error that has the advice and no secret.
func refused(t *testing.T, name string, configure func(*Config), advice string) {
	t.Helper()
	var log bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, err := Factory().Open(ctx, func(into any) error {
		configure(into.(*Config))
		return nil
	}, broker.Options{Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	require.ErrorContains(t, err, advice, name)
	require.NotContains(t, fmt.Sprintf("%+v", err), shopPassword, name)
	require.NotContains(t, log.String(), shopPassword, name)
}

func TestTLSAndPassword(t *testing.T) {
	t.Parallel()
	certs := testenv.NewCertificates(t)
	_, address := secureServer(t, certs, &server.Options{Username: "shop", Password: shopPassword})
	right := func(c *Config) {
		c.URL, c.User, c.Password, c.TLS.CA = "tls://"+address, "shop", shopPassword, certs.CA
	}
	works(t, right)
	for name, r := range map[string]struct {
		change func(*Config)
		advice string
	}{
		"unknown authority": {func(c *Config) { c.TLS.CA = "" }, "set tls.ca"},
		"wrong authority":   {func(c *Config) { c.TLS.CA = certs.OtherCA }, "set tls.ca"},
		"wrong name":        {func(c *Config) { c.URL = strings.Replace(c.URL, "localhost", "127.0.0.1", 1) }, "connect by a name that it has"},
		"wrong password":    {func(c *Config) { c.Password += "x" }, "check what gives access"},
		"no user":           {func(c *Config) { c.User, c.Password = "", "" }, "check what gives access"},
	} {
		refused(t, name, func(c *Config) {
			right(c)
			r.change(c)
		}, r.advice)
	}
	refused(t, "no TLS there", func(c *Config) { c.URL = strings.Replace(testenv.NATS(t), "nats://", "tls://", 1) }, "nats:// where it has none")
}

func TestTLSClientCertificate(t *testing.T) {
	t.Parallel()
	certs, strangers := testenv.NewCertificates(t), testenv.NewCertificates(t)
	_, address := secureServer(t, certs, &server.Options{TLSVerify: true})
	with := func(own testenv.Certificates) func(c *Config) {
		return func(c *Config) {
			c.URL, c.TLS = "tls://"+address, TLS{CA: certs.CA, Cert: own.Client, Key: own.ClientKey}
		}
	}
	works(t, with(certs))
	refused(t, "no certificate", with(testenv.Certificates{}), "tls.cert and tls.key")
	refused(t, "a stranger's certificate", with(strangers), "tls.cert and tls.key")
}

// operator signs accounts, as those of a hosted NATS do.
type operator struct {
	t        *testing.T
	key      nkeys.KeyPair
	claims   *jwt.OperatorClaims
	accounts *server.MemAccResolver
}

func newOperator(t *testing.T) *operator {
	t.Helper()
	key, err := nkeys.CreateOperator()
	require.NoError(t, err)
	o := &operator{t: t, key: key, claims: jwt.NewOperatorClaims(public(t, key)), accounts: &server.MemAccResolver{}}
	_, err = o.claims.Encode(key)
	require.NoError(t, err)
	return o
}

func public(t *testing.T, key nkeys.KeyPair) string {
	t.Helper()
	name, err := key.PublicKey()
	require.NoError(t, err)
	return name
}

// account makes one that may use JetStream.
func (o *operator) account() (nkeys.KeyPair, *jwt.AccountClaims) {
	o.t.Helper()
	key, err := nkeys.CreateAccount()
	require.NoError(o.t, err)
	claims := jwt.NewAccountClaims(public(o.t, key))
	claims.Limits.JetStreamLimits = jwt.JetStreamLimits{MemoryStorage: -1, DiskStorage: -1, Streams: -1, Consumer: -1}
	o.publish(claims)
	return key, claims
}

func (o *operator) publish(claims *jwt.AccountClaims) {
	o.t.Helper()
	token, err := claims.Encode(o.key)
	require.NoError(o.t, err)
	require.NoError(o.t, o.accounts.Store(claims.Subject, token))
}

// user makes a user of the account, and returns its name and its credentials file.
func user(t *testing.T, account nkeys.KeyPair) (name string, creds []byte) {
	t.Helper()
	key, err := nkeys.CreateUser()
	require.NoError(t, err)
	token, err := jwt.NewUserClaims(public(t, key)).Encode(account)
	require.NoError(t, err)
	seed, err := key.Seed()
	require.NoError(t, err)
	creds, err = jwt.FormatUserConfig(token, seed)
	require.NoError(t, err)
	return public(t, key), creds
}

// A user's credentials are revoked, which closes its connections, and only then the file has those of another user.
func TestTLSAndCredentials(t *testing.T) {
	t.Parallel()
	certs, o := testenv.NewCertificates(t), newOperator(t)
	_, system := o.account()
	// JetStream is not for the system account.
	system.Limits.JetStreamLimits = jwt.JetStreamLimits{}
	o.publish(system)
	account, claims := o.account()
	s, address := secureServer(t, certs, &server.Options{
		TrustedOperators: []*jwt.OperatorClaims{o.claims}, AccountResolver: o.accounts, SystemAccount: system.Subject,
	})

	file := filepath.Join(t.TempDir(), "user.creds")
	tell := func(creds []byte) {
		require.NoError(t, os.WriteFile(file+".new", creds, 0o600))
		require.NoError(t, os.Rename(file+".new", file))
	}
	first, creds := user(t, account)
	tell(creds)
	configure := func(c *Config) { c.URL, c.CredsFile, c.TLS.CA = "tls://"+address, file, certs.CA }
	b := openTest(t, Factory(), configure, "")
	t.Cleanup(func() { _ = b.Close() })
	c := newCourier(t, b)
	c.exchange()

	_, next := user(t, account)
	claims.Revoke(first)
	o.publish(claims)
	live, err := s.LookupAccount(claims.Subject)
	require.NoError(t, err)
	s.UpdateAccountClaims(live, claims)
	testenv.Eventually(t, longWait, func() error {
		if b.Ping(t.Context()) == nil {
			return fmt.Errorf("revoked credentials still give access")
		}
		return nil
	})
	refused(t, "revoked", configure, "check what gives access")
	tell(next)
	c.exchange()

	strange := newOperator(t)
	other, _ := strange.account()
	_, creds = user(t, other)
	tell(creds)
	refused(t, "another operator's", configure, "check what gives access")
	require.NoError(t, os.Remove(file))
	refused(t, "no file", configure, "user.creds")
}
