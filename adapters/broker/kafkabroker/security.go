package kafkabroker

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/IBM/sarama"

	"github.com/oncemill/oncemill/adapters/internal/tlsfault"
)

// Secret is a text that is never printed: fmt, slog, JSON and YAML show "[hidden]".
type Secret string

const hidden = "[hidden]"

// Format implements fmt.Formatter, so that no verb prints the text.
func (Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(hidden)) }

// LogValue implements slog.LogValuer.
func (Secret) LogValue() slog.Value { return slog.StringValue(hidden) }

// MarshalText implements encoding.TextMarshaler, which JSON and YAML use.
func (s Secret) MarshalText() ([]byte, error) {
	if s == "" {
		return nil, nil
	}
	return []byte(hidden), nil
}

// TLSConfig is the encryption of connections. Files are read again for each connection, so certificates can be
// replaced without a restart.
type TLSConfig struct {
	// Enabled turns TLS on. Defaults to false.
	Enabled bool `yaml:"enabled"`
	// CAFile has the certificates, in PEM, of the authorities that sign the brokers'. Defaults to the machine's.
	CAFile string `yaml:"ca_file"`
	// CertFile and KeyFile, in PEM, are this client's identity for mutual TLS.
	CertFile string `yaml:"cert_file"`
	KeyFile  string `yaml:"key_file"`
	// ServerName is the name that the brokers' certificates must carry. Defaults to the host of each address.
	ServerName string `yaml:"server_name"`
}

func (c TLSConfig) validate() error {
	switch {
	case !c.Enabled && (c.CAFile != "" || c.CertFile != "" || c.KeyFile != "" || c.ServerName != ""):
		return errors.New("kafka: tls has settings but is off: set tls.enabled to true")
	case (c.CertFile == "") != (c.KeyFile == ""):
		return errors.New("kafka: tls.cert_file and tls.key_file belong together: set both or none")
	}
	return nil
}

// config reads the files and returns what a connection needs.
func (c TLSConfig) config() (*tls.Config, error) {
	conf := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.ServerName}
	if c.CAFile != "" {
		pem, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("kafka: reading tls.ca_file: %w", err)
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("kafka: tls.ca_file %s has no certificate in PEM form", c.CAFile)
		}
	}
	if c.CertFile == "" {
		return conf, nil
	}
	if _, err := c.certificate(nil); err != nil {
		return nil, err
	}
	conf.GetClientCertificate = c.certificate
	return conf, nil
}

func (c TLSConfig) certificate(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	cert, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("kafka: reading tls.cert_file and tls.key_file: %w", err)
	}
	return &cert, nil
}

// Mechanisms of SASL.
const (
	saslPlain       = "PLAIN"
	saslScramSHA256 = "SCRAM-SHA-256"
	saslScramSHA512 = "SCRAM-SHA-512"
)

// SASLConfig is how this client proves who it is.
type SASLConfig struct {
	// Mechanism is PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512. Empty is no SASL. PLAIN sends the password itself: use it over TLS only.
	Mechanism string `yaml:"mechanism"`
	// User is the user's name.
	User string `yaml:"user"`
	// Password is the password. Better is PasswordFile.
	Password Secret `yaml:"password"`
	// PasswordFile is a file with the password; one newline at its end is dropped. With SCRAM it is read again for each connection, with
	// PLAIN whenever a client is made anew.
	PasswordFile string `yaml:"password_file"`
}

func (c SASLConfig) validate() error {
	if c.Mechanism == "" {
		if c.User != "" || c.Password != "" || c.PasswordFile != "" {
			return errors.New("kafka: sasl has a user or password but no mechanism: set sasl.mechanism")
		}
		return nil
	}
	var errs []error
	if !slices.Contains([]string{saslPlain, saslScramSHA256, saslScramSHA512}, c.Mechanism) {
		errs = append(errs, fmt.Errorf("kafka: sasl.mechanism %q is none of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512", c.Mechanism))
	}
	if c.User == "" {
		errs = append(errs, errors.New("kafka: sasl.user is empty"))
	}
	if (c.Password == "") == (c.PasswordFile == "") {
		errs = append(errs, errors.New("kafka: set one of sasl.password and sasl.password_file"))
	}
	return errors.Join(errs...)
}

// password returns the password as it stands now.
func (c SASLConfig) password() (string, error) {
	if c.PasswordFile == "" {
		return string(c.Password), nil
	}
	text, err := os.ReadFile(c.PasswordFile)
	if err != nil {
		return "", fmt.Errorf("kafka: reading sasl.password_file: %w", err)
	}
	return strings.TrimSuffix(strings.TrimSuffix(string(text), "\n"), "\r"), nil
}

// unreachable says what to do where no broker lets this client in.
func (c Config) unreachable(err error) error {
	settings := tlsfault.Settings{
		On: "TLS by tls.enabled", Used: c.TLS.Enabled,
		CA: "tls.ca_file", Client: "tls.cert_file and tls.key_file", Name: "tls.server_name",
	}
	if c.SASL.Mechanism == "" {
		settings.Ended = "; where it wants a user, set sasl.mechanism"
	}
	what := fmt.Sprintf("kafka: no broker of %s can be used", strings.Join(c.Brokers, ", "))
	switch {
	case errors.Is(err, sarama.ErrSASLAuthenticationFailed):
		return fmt.Errorf("%s: %w; check sasl.user and sasl.password, or the file of sasl.password_file", what, err)
	case errors.Is(err, sarama.ErrUnsupportedSASLMechanism):
		return fmt.Errorf("%s: %w; set sasl.mechanism to one that this listener takes", what, err)
	}
	if explained := settings.Explain(err); explained != err { //nolint:errorlint // whether it is another value
		return fmt.Errorf("%s: %w", what, explained)
	}
	return fmt.Errorf("%s; check brokers, tls and sasl, and that the cluster runs: %w", what, err)
}
