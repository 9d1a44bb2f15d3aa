package rabbitbroker

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/adapters/internal/tlsfault"
)

const (
	connectWithin = 10 * time.Second
	// heartbeat finds a silent peer within three of them.
	heartbeat = 5 * time.Second
)

// errURL tells no part of the URL: where a password is not percent-encoded, any part may be its.
var errURL = errors.New("not a valid AMQP URL: expected amqp://user:password@host:port/vhost, with reserved characters in user and password percent-encoded")

// parseURL parses an AMQP URL. Its errors hold nothing of the URL.
func parseURL(text string) (amqp.URI, error) {
	u, err := url.Parse(text)
	if err != nil {
		return amqp.URI{}, errURL
	}
	// A '/', '?' or '#' of the password ends what net/url takes for the host: the '@' then stands behind it.
	if u.Fragment != "" || strings.Contains(u.RawQuery, "@") || u.User == nil && strings.Contains(u.Path, "@") {
		return amqp.URI{}, errURL
	}
	uri, err := amqp.ParseURI(text)
	if err != nil {
		return amqp.URI{}, errURL
	}
	return uri, nil
}

// currentURL returns the URL to connect with now.
func (c Config) currentURL() (string, amqp.URI, error) {
	text := c.URL
	if c.URLFile != "" {
		raw, err := os.ReadFile(c.URLFile)
		if err != nil {
			return "", amqp.URI{}, fmt.Errorf("url_file: %w", err)
		}
		text = strings.TrimSpace(string(raw))
	}
	uri, err := parseURL(text)
	return text, uri, err
}

// dial opens a connection within ctx. Its errors name the host and never the password.
func (c Config) dial(ctx context.Context, opts broker.Options, clientName string) (*amqp.Connection, error) {
	text, uri, err := c.currentURL()
	if err != nil {
		return nil, err
	}
	host := net.JoinHostPort(uri.Host, fmt.Sprint(uri.Port))
	cfg := amqp.Config{Heartbeat: heartbeat, Properties: amqp.NewConnectionProperties()}
	cfg.Properties.SetClientConnectionName(clientName)
	if uri.Scheme == "amqps" {
		if cfg.TLSClientConfig, err = c.tlsConfig(uri); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, connectWithin)
	defer cancel()
	stop := func() bool { return true }
	dial := opts.Dial
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	cfg.Dial = func(network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		// The handshake has no context: its connection is closed under it when ctx ends.
		stop = context.AfterFunc(ctx, func() { _ = conn.Close() })
		return conn, nil
	}
	conn, err := amqp.DialConfig(text, cfg)
	if !stop() && err == nil {
		_ = conn.Close()
		err = ctx.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("connecting to RabbitMQ at %s: %w", host, dialError(ctx, err, uri))
	}
	return conn, nil
}

// dialError says what to do about err.
func dialError(ctx context.Context, err error, uri amqp.URI) error {
	// Nothing in the client puts a password into these errors; should it begin to, the error is replaced.
	for _, secret := range []string{uri.Password, url.QueryEscape(uri.Password), url.PathEscape(uri.Password)} {
		if len(secret) > 3 && secret != "guest" && strings.Contains(err.Error(), secret) {
			return errors.New("the connection failed")
		}
	}
	var refusal *amqp.Error
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("no answer in time: %w; is it running, and is the URL right?", ctx.Err())
	case errors.Is(err, amqp.ErrCredentials) || errors.Is(err, amqp.ErrSASL):
		return errors.New("user or password refused: check them in url, or in the file of url_file")
	case errors.Is(err, amqp.ErrVhost), errors.As(err, &refusal) && refusal.Code == amqp.NotAllowed:
		return fmt.Errorf("no access to virtual host %q: have it made, and grant this user permissions there", uri.Vhost)
	}
	settings := tlsfault.Settings{
		On: "TLS by amqp in url", Used: uri.Scheme == "amqps",
		CA: "tls.ca_file", Client: "tls.cert_file and tls.key_file", Name: "tls.server_name",
	}
	if explained := settings.Explain(err); explained != err { //nolint:errorlint // whether it is another value
		return explained
	}
	return fmt.Errorf("%w; is it running, and is the URL right?", err)
}

// tlsConfig makes the TLS configuration; files named in the URL's query stand in for those of Config.TLS.
func (c Config) tlsConfig(uri amqp.URI) (*tls.Config, error) {
	t := c.TLS
	first := func(a, b string) string {
		if a != "" {
			return a
		}
		return b
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: first(t.ServerName, first(uri.ServerName, uri.Host))}
	if file := first(t.CAFile, uri.CACertFile); file != "" {
		pem, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("tls: ca_file: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("tls: ca_file: %s holds no certificate in PEM form", file)
		}
	}
	if cert, key := first(t.CertFile, uri.CertFile), first(t.KeyFile, uri.KeyFile); cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("tls: cert_file and key_file: %w", err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, nil
}
