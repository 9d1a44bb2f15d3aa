package email_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"mime/quotedprintable"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/handlers/internal/txtest"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/internal/testenv/smtpsink"
)

// sinkConfig is the configuration that sends to the sink, with more settings of the section smtp.
func sinkConfig(t *testing.T, sink *smtpsink.Sink, more ...string) string {
	t.Helper()
	return addrConfig(t, sink.Addr(), more...)
}

func addrConfig(t *testing.T, addr string, more ...string) string {
	t.Helper()
	host, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	return fmt.Sprintf("{transport: smtp, from: Shop <shop@example.org>, smtp: {%s}}",
		strings.Join(append([]string{"host: " + host, "port: " + port}, more...), ", "))
}

func decodeQuoted(t *testing.T, body string) string {
	t.Helper()
	text, err := io.ReadAll(quotedprintable.NewReader(strings.NewReader(body)))
	require.NoError(t, err)
	return string(text)
}

// caFile writes the sink's certificate to a file.
func caFile(t *testing.T, sink *smtpsink.Sink) string {
	t.Helper()
	response, err := http.Get(sink.URL() + "/certificate")
	require.NoError(t, err)
	defer func() { require.NoError(t, response.Body.Close()) }()
	pem, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, os.WriteFile(path, pem, 0o600))
	return path
}

// (a) The server answers after the client's time is over: it has the letter, the client does not know.
func TestF077aLateAnswer(t *testing.T) {
	sink := smtpsink.Start(t, smtpsink.Options{Faults: smtpsink.Faults{Delay: time.Minute}})
	e := external(t, onRequested, sinkConfig(t, sink, "tls: none", "timeout: 300ms"))
	require.Equal(t, handlers.UnknownPark, e.Unknown)
	require.Nil(t, e.Probe)
	_, err := call(t, e, "k", request("bob@example.org", "Hi"))
	txtest.RequireUnknown(t, err)
	require.ErrorContains(t, err, "no answer within smtp.timeout")
	require.Len(t, sink.Letters(), 1)
}

// (b) The server drops the connection after the body; whether it has kept the letter cannot be told apart.
func TestF077bDroppedAfterTheBody(t *testing.T) {
	sink := smtpsink.Start(t, smtpsink.Options{})
	e := external(t, onRequested, sinkConfig(t, sink, "tls: none"))
	for faults, kept := range map[*smtpsink.Faults]int{{DropKept: 1}: 1, {DropLost: 1}: 0} {
		sink.Reset()
		sink.SetFaults(*faults)
		_, err := call(t, e, "k", request("bob@example.org", "Hi"))
		txtest.RequireUnknown(t, err)
		require.Len(t, sink.Letters(), kept)
	}
	// A person decides to send it again: under its same identity.
	sink.Reset()
	sink.SetFaults(smtpsink.Faults{DropKept: 1})
	_, err := call(t, e, "k", request("bob@example.org", "Hi"))
	txtest.RequireUnknown(t, err)
	sent, err := call(t, e, "k", request("bob@example.org", "Hi"))
	require.NoError(t, err)
	letters := sink.Letters()
	require.Len(t, letters, 2)
	require.Equal(t, sent.MessageID, letters[0].MessageID)
	require.Equal(t, sent.MessageID, letters[1].MessageID)
}

// (c) 451 after DATA: surely not taken, so it is tried again, with the same Message-ID.
func TestF077cTemporaryRefusalOfTheLetter(t *testing.T) {
	sink := smtpsink.Start(t, smtpsink.Options{Faults: smtpsink.Faults{RefuseData: 1}})
	e := external(t, onRequested, sinkConfig(t, sink, "tls: none"))
	_, err := call(t, e, "k", request("bob@example.org", "Hi"))
	txtest.RequireTransient(t, err)
	require.ErrorContains(t, err, "451 4.3.0 Try again later")
	require.Empty(t, sink.Letters())

	sent, err := call(t, e, "k", request("bob@example.org", "Hi"))
	require.NoError(t, err)
	require.Len(t, sink.Letters(), 1)
	require.Equal(t, handlers.NewKey(txtest.Scope, "k").String()+"@example.org", sink.Letters()[0].MessageID)
	require.NotEmpty(t, sent.Reply, "the server's answer is kept")
}

// (d) 550 to RCPT TO: a dead letter at once.
func TestF077dRefusedRecipient(t *testing.T) {
	sink := smtpsink.Start(t, smtpsink.Options{Faults: smtpsink.Faults{RefuseRecipients: []string{"*"}}})
	e := external(t, onRequested, sinkConfig(t, sink, "tls: none"))
	_, err := call(t, e, "k", request("bob@example.org", "Hi"))
	require.Contains(t, txtest.RequirePermanent(t, err, "smtp-refused"), "550 5.1.1 No such mailbox")
	require.Empty(t, sink.Letters())
}

// (e) Nobody listens: tried again.
func TestF077eConnectionRefused(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	e := external(t, onRequested, addrConfig(t, listener.Addr().String(), "tls: none"))
	_, err = call(t, e, "k", request("bob@example.org", "Hi"))
	txtest.RequireTransient(t, err)
}

// A stop, or a lost lease, ends a call at once; what it means depends on how far the letter came.
func TestCancelledCall(t *testing.T) {
	t.Run("while the server decides", func(t *testing.T) {
		sink := smtpsink.Start(t, smtpsink.Options{Faults: smtpsink.Faults{Delay: time.Minute}})
		e := external(t, onRequested, sinkConfig(t, sink, "tls: none"))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan error, 1)
		go func() {
			_, err := callWith(t, ctx, e, "k", request("bob@example.org", "Hi"))
			done <- err
		}()
		testenv.Eventually(t, 10*time.Second, func() error {
			if len(sink.Letters()) == 0 {
				return fmt.Errorf("no letter yet")
			}
			return nil
		})
		cancel()
		err := <-done
		txtest.RequireUnknown(t, err)
		require.ErrorIs(t, err, context.Canceled)
	})
	t.Run("while a mute server is connected", func(t *testing.T) {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer func() { require.NoError(t, listener.Close()) }()
		e := external(t, onRequested, addrConfig(t, listener.Addr().String()))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() {
			if conn, err := listener.Accept(); err == nil {
				cancel()
				_, _ = conn.Read(make([]byte, 1)) // until the client goes
				_ = conn.Close()
			}
		}()
		_, err = callWith(t, ctx, e, "k", request("bob@example.org", "Hi"))
		txtest.RequireTransient(t, err)
		require.ErrorIs(t, err, context.Canceled)
	})
}

func TestStartTLSAndLogin(t *testing.T) {
	const password = "s3cr3t-Zq!"
	sink := smtpsink.Start(t, smtpsink.Options{StartTLS: true, Username: "shop", Password: password})
	ca := "ca_file: " + caFile(t, sink)
	passwordFile := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(passwordFile, []byte("old\n"), 0o600))

	e := external(t, onRequested, sinkConfig(t, sink, ca, "username: shop", "password_file: "+passwordFile))
	_, err := call(t, e, "k", request("bob@example.org", "Hi"))
	txtest.RequireTransient(t, err)
	require.ErrorContains(t, err, "smtp login")

	require.NoError(t, os.WriteFile(passwordFile, []byte(password+"\n"), 0o600)) // rotated
	_, err = call(t, e, "k", request("bob@example.org", "Hi"))
	require.NoError(t, err)
	require.Len(t, sink.Letters(), 1)
	require.True(t, sink.Letters()[0].TLS)
	require.Equal(t, "shop", sink.Letters()[0].User)

	for name, settings := range map[string][]string{
		"unknown authority": {"username: shop", "password: '" + password + "'"},
		"no such ca_file":   {"ca_file: /nowhere", "username: shop", "password: '" + password + "'"},
		"no login":          {ca},
		"no password file":  {ca, "username: shop", "password_file: /nowhere"},
		"wrong password":    {ca, "username: shop", "password: '" + password + "x'"},
		"plain text":        {"tls: none", "username: shop", "password: '" + password + "'"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := call(t, external(t, onRequested, sinkConfig(t, sink, settings...)), "k", request("bob@example.org", "Hi"))
			txtest.RequireTransient(t, err)
			require.NotContains(t, err.Error(), "s3cr3t")
			require.NotContains(t, err.Error(), "bob@")
		})
	}
	require.Len(t, sink.Letters(), 1)
}

func TestServerWithoutSTARTTLSIsNotTrusted(t *testing.T) {
	sink := smtpsink.Start(t, smtpsink.Options{})
	_, err := call(t, external(t, onRequested, sinkConfig(t, sink)), "k", request("bob@example.org", "Hi"))
	txtest.RequireTransient(t, err)
	require.ErrorContains(t, err, "STARTTLS")
	require.Empty(t, sink.Letters())
}

func TestImplicitTLS(t *testing.T) {
	withTLS := smtpsink.Start(t, smtpsink.Options{StartTLS: true}) // for its certificate
	sink := smtpsink.Start(t, smtpsink.Options{})
	front := terminateTLS(t, sink.Addr())
	config := addrConfig(t, front.addr, "tls: implicit", "ca_file: "+front.ca)
	_, err := call(t, external(t, onRequested, config), "k", request("bob@example.org", "Hi"))
	require.NoError(t, err)
	require.Len(t, sink.Letters(), 1)

	config = addrConfig(t, front.addr, "tls: implicit", "ca_file: "+caFile(t, withTLS))
	_, err = call(t, external(t, onRequested, config), "k", request("bob@example.org", "Hi"))
	txtest.RequireTransient(t, err)
	require.Len(t, sink.Letters(), 1)
}

type tlsFront struct{ addr, ca string }

// terminateTLS listens with TLS and passes the plain conversation on.
func terminateTLS(t *testing.T, to string) tlsFront {
	t.Helper()
	cert, ca := certificate(t)
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{cert}})
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = client.Close() }()
				server, err := net.Dial("tcp", to)
				if err != nil {
					return
				}
				defer func() { _ = server.Close() }()
				go func() { _, _ = io.Copy(server, client); _ = server.Close() }()
				_, _ = io.Copy(client, server)
			}()
		}
	}()
	return tlsFront{listener.Addr().String(), ca}
}
