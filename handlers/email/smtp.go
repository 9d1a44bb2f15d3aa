package email

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/mail"
	"os"
	"strconv"
	"time"

	"github.com/emersion/go-sasl"
	"github.com/emersion/go-smtp"
)

// smtpTransport sends each letter over a connection of its own.
type smtpTransport struct {
	cfg  SMTPConfig
	from *mail.Address
}

var _ transport = (*smtpTransport)(nil)

// errNoAnswer is why a conversation ends when its time is over.
var errNoAnswer = errors.New("no answer within smtp.timeout")

// farewell bounds the wait for the answer to QUIT, when the letter is accepted already.
const farewell = time.Second

// send returns the server's answer to the letter. doc.go says what its errors mean.
func (s *smtpTransport) send(ctx context.Context, l letter) (string, error) {
	body, err := l.encode(s.from)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.cfg.Timeout, errNoAnswer)
	defer cancel()
	reply, at, err := s.talk(ctx, l, body)
	if err != nil {
		return "", s.failure(ctx, at, err)
	}
	return reply, nil
}

// talk holds the conversation and says how far it came.
func (s *smtpTransport) talk(ctx context.Context, l letter, body []byte) (reply string, at step, err error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(s.cfg.Host, strconv.Itoa(s.cfg.port())))
	if err != nil {
		return "", atConnect, err
	}
	// The client's own time limits do not cover its writes, so the end of ctx closes the connection under it.
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	defer func() { _ = conn.Close() }()

	client, err := s.greet(ctx, conn)
	if err != nil {
		return "", atConnect, err
	}
	if err := s.login(client); err != nil {
		return "", atLogin, err
	}
	if err := client.Mail(s.from.Address, &smtp.MailOptions{Size: int64(len(body))}); err != nil {
		return "", atMail, err
	}
	if err := client.Rcpt(l.to.Address, nil); err != nil {
		return "", atRcpt, err
	}
	data, err := client.Data()
	if err != nil {
		return "", atData, err
	}
	if _, err := bytes.NewReader(body).WriteTo(data); err != nil {
		return "", atLetter, err
	}
	response, err := data.CloseWithResponse()
	if err != nil {
		return "", atLetter, err
	}
	client.CommandTimeout = farewell
	_ = client.Quit() // the letter is the server's now
	return printable(response.StatusText), atLetter, nil
}

// greet sets up TLS and says hello.
func (s *smtpTransport) greet(ctx context.Context, conn net.Conn) (*smtp.Client, error) {
	var client *smtp.Client
	if s.cfg.TLS == tlsNone {
		client = smtp.NewClient(conn)
	} else {
		config, err := s.tlsConfig()
		if err != nil {
			return nil, err
		}
		if s.cfg.TLS == tlsImplicit {
			secure := tls.Client(conn, config)
			if err := secure.HandshakeContext(ctx); err != nil {
				return nil, err
			}
			client = smtp.NewClient(secure)
		} else if client, err = smtp.NewClientStartTLS(conn, config); err != nil {
			return nil, err
		}
	}
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	return client, client.Hello(cmp.Or(s.cfg.HelloName, host))
}

func (s *smtpTransport) tlsConfig() (*tls.Config, error) {
	config := &tls.Config{ServerName: s.cfg.Host, MinVersion: tls.VersionTLS12}
	if s.cfg.CAFile == "" {
		return config, nil
	}
	pem, err := os.ReadFile(s.cfg.CAFile)
	if err != nil {
		return nil, fmt.Errorf("read smtp.ca_file: %w", err)
	}
	config.RootCAs = x509.NewCertPool()
	if !config.RootCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("smtp.ca_file has no certificate in PEM")
	}
	return config, nil
}

func (s *smtpTransport) login(client *smtp.Client) error {
	if s.cfg.Username == "" {
		return nil
	}
	password := string(s.cfg.Password)
	if s.cfg.PasswordFile != "" {
		text, err := os.ReadFile(s.cfg.PasswordFile)
		if err != nil {
			return fmt.Errorf("read smtp.password_file: %w", err)
		}
		password = string(bytes.TrimRight(text, "\r\n"))
	}
	switch {
	case client.SupportsAuth(sasl.Plain):
		return client.Auth(sasl.NewPlainClient("", s.cfg.Username, password))
	case client.SupportsAuth(sasl.Login):
		return client.Auth(sasl.NewLoginClient(s.cfg.Username, password))
	}
	return errors.New("the server offers neither PLAIN nor LOGIN; unset smtp.username if it needs no login")
}
