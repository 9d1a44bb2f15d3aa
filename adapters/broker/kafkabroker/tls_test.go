package kafkabroker_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/adapters/broker/kafkabroker"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/outbox"
)

const shopPassword = "s3cr3t-Zq!"

// secure is a server with TLS and SCRAM, and its user "shop".
type secure struct {
	*testenv.Server
	certs testenv.Certificates
	admin sarama.ClusterAdmin // over the listener without TLS
}

func newSecure(t *testing.T, env ...string) secure {
	t.Helper()
	certs := testenv.NewCertificates(t)
	s := secure{Server: testenv.PrivateTLS(t, "kafka", certs, env...), certs: certs}
	conf := sarama.NewConfig()
	conf.Version = sarama.V2_8_0_0
	admin, err := sarama.NewClusterAdmin([]string{s.Address}, conf)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, admin.Close()) })
	s.admin = admin
	s.setPassword(t, shopPassword)
	return s
}

// setPassword returns once the password holds.
func (s secure) setPassword(t *testing.T, password string) {
	t.Helper()
	for _, mechanism := range []sarama.ScramMechanismType{sarama.SCRAM_MECHANISM_SHA_256, sarama.SCRAM_MECHANISM_SHA_512} {
		results, err := s.admin.UpsertUserScramCredentials([]sarama.AlterUserScramCredentialsUpsert{{
			Name: "shop", Mechanism: mechanism, Iterations: 4096, Salt: []byte("salt"), Password: []byte(password),
		}})
		require.NoError(t, err)
		require.Len(t, results, 1)
		require.Equal(t, sarama.ErrNoError, results[0].ErrorCode)
	}
	testenv.Eventually(t, patience, func() error {
		b, err := kafkabroker.Open(t.Context(), s.config(t, password, nil), broker.Options{})
		if err != nil {
			return err
		}
		return b.Close()
	})
}

// config is one that works, changed; where certificates of clients are wanted, the change adds one.
func (s secure) config(t *testing.T, password string, change func(*kafkabroker.Config)) kafkabroker.Config {
	t.Helper()
	c := testConfig(t)
	c.Brokers = []string{s.TLS}
	c.TLS = kafkabroker.TLSConfig{Enabled: true, CAFile: s.certs.CA, CertFile: s.certs.Client, KeyFile: s.certs.ClientKey}
	c.SASL = kafkabroker.SASLConfig{Mechanism: "SCRAM-SHA-512", User: "shop", Password: kafkabroker.Secret(password)}
	if change != nil {
		change(&c)
	}
	return c
}

func withoutCertificate(c *kafkabroker.Config) { c.TLS.CertFile, c.TLS.KeyFile = "", "" }

// works makes a topic, publishes a message and consumes it.
func works(t *testing.T, c kafkabroker.Config) {
	t.Helper()
	b := open(t, c)
	topic := testenv.Name(t, "tls")
	require.NoError(t, b.Declare(t.Context(), topic, nil))
	r := subscribe(t, b, broker.Subscription{Topic: topic, Group: topic})
	require.NoError(t, b.Publisher().Publish(topic, newMessages(1, "")...))
	r.next().Ack()
	r.drain()
	require.NoError(t, b.Close())
}

// refused requires that nothing opens, with an error that has the advice and no secret.
func refused(t *testing.T, name string, c kafkabroker.Config, advice string) {
	t.Helper()
	var log bytes.Buffer
	_, err := kafkabroker.Open(t.Context(), c, broker.Options{Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	require.ErrorContains(t, err, advice, name)
	require.NotContains(t, fmt.Sprintf("%+v", err), shopPassword, name)
	require.NotContains(t, log.String(), shopPassword, name)
}

func TestTLSWithSCRAM(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts a server of its own")
	}
	server := newSecure(t)
	byAddress := strings.Replace(server.TLS, "localhost", "127.0.0.1", 1)
	works(t, server.config(t, shopPassword, withoutCertificate))
	works(t, server.config(t, shopPassword, func(c *kafkabroker.Config) {
		c.SASL.Mechanism, c.Brokers, c.TLS.ServerName = "SCRAM-SHA-256", []string{byAddress}, "localhost"
	}))
	for name, r := range map[string]struct {
		password string
		change   func(*kafkabroker.Config)
		advice   string
	}{
		"unknown authority": {shopPassword, func(c *kafkabroker.Config) { c.TLS.CAFile = "" }, "set tls.ca_file"},
		"wrong authority":   {shopPassword, func(c *kafkabroker.Config) { c.TLS.CAFile = server.certs.OtherCA }, "set tls.ca_file"},
		"wrong name":        {shopPassword, func(c *kafkabroker.Config) { c.Brokers = []string{byAddress} }, "set tls.server_name"},
		"wrong password":    {shopPassword + "x", nil, "sasl.user and sasl.password"},
		"no such user":      {shopPassword, func(c *kafkabroker.Config) { c.SASL.User = "nobody" }, "sasl.user and sasl.password"},
		"wrong mechanism":   {shopPassword, func(c *kafkabroker.Config) { c.SASL.Mechanism = "PLAIN" }, "check brokers, tls and sasl"},
		"no SASL":           {shopPassword, func(c *kafkabroker.Config) { c.SASL = kafkabroker.SASLConfig{} }, "set sasl.mechanism"},
		"wrong port":        {shopPassword, func(c *kafkabroker.Config) { c.Brokers = []string{server.Address} }, "speaks TLS at this port"},
		"no TLS":            {shopPassword, func(c *kafkabroker.Config) { c.TLS = kafkabroker.TLSConfig{} }, "check brokers, tls and sasl"},
	} {
		refused(t, name, server.config(t, r.password, r.change), r.advice)
	}
	t.Run("PasswordChangesInMidLoad", func(t *testing.T) { passwordChanges(t, server) })
}

// passwordChanges: the password is changed and the connections are closed, and only then the file tells the new one.
func passwordChanges(t *testing.T, server secure) {
	file := filepath.Join(t.TempDir(), "password")
	tell := func(password string) {
		require.NoError(t, os.WriteFile(file+".new", []byte(password+"\n"), 0o600))
		require.NoError(t, os.Rename(file+".new", file))
	}
	tell(shopPassword)
	network := &line{}
	b := open(t, server.config(t, "", func(c *kafkabroker.Config) { c.SASL.PasswordFile, c.Dial = file, network.dial }))
	topic := testenv.Name(t, "rotated")
	require.NoError(t, b.Declare(t.Context(), topic, nil))
	r := subscribe(t, b, broker.Subscription{Topic: topic, Group: topic})
	exchange := func() {
		msg := newMessages(1, "")[0]
		testenv.Eventually(t, patience, func() error { return b.Publisher().Publish(topic, msg) })
		for received := ""; received != msg.UUID; { // an earlier attempt may have left a copy
			m := r.next()
			received = m.UUID
			m.Ack()
		}
	}
	exchange()
	for _, password := range []string{"second", "third"} {
		server.setPassword(t, password)
		network.cut()
		network.restore()
		require.ErrorIs(t, b.Publisher().Publish(topic, newMessages(1, "")...), outbox.ErrUnavailable)
		tell(password)
		exchange()
	}
	r.drain()
}

func TestTLSClientCertificate(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts a server of its own")
	}
	server := newSecure(t, "ONCEMILL_TEST_TLS_CLIENTS=true")
	works(t, server.config(t, shopPassword, nil))
	const advice = "tls.cert_file and tls.key_file"
	refused(t, "no certificate", server.config(t, shopPassword, withoutCertificate), advice)
	strangers := testenv.NewCertificates(t)
	refused(t, "a stranger's certificate", server.config(t, shopPassword, func(c *kafkabroker.Config) {
		c.TLS.CertFile, c.TLS.KeyFile = strangers.Client, strangers.ClientKey
	}), advice)
}
