package email

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"
)

// Values of Config.Transport.
const (
	transportFolder = "folder"
	transportSMTP   = "smtp"
)

// Values of SMTPConfig.TLS.
const (
	tlsNone     = "none"
	tlsStart    = "starttls"
	tlsImplicit = "implicit"
)

// Config is the plugin's section of the configuration.
type Config struct {
	// Transport is where letters go: "folder" writes files, "smtp" sends them.
	//
	// Defaults to "folder".
	Transport string `yaml:"transport" doc:"where letters go: folder (files) or smtp"`
	// Folder is where transport "folder" writes one file for each letter. It is made when the first letter is written.
	//
	// Defaults to "./oncemill-data/mail".
	Folder string `yaml:"folder" doc:"the folder for letters, with transport folder"`
	// From is the sender: "user@example.org" or "Name <user@example.org>". Transport "smtp" needs it.
	//
	// Defaults to "oncemill@localhost".
	From string `yaml:"from" doc:"the sender, as user@example.org or Name <user@example.org>"`
	// Domain is the right part of each Message-ID. A change gives letters that are tried again another identity.
	//
	// Defaults to the domain of From.
	Domain string `yaml:"domain" doc:"the right part of each Message-ID; the domain of from unless set"`
	// Announce publishes "email.sent" for each letter. Switch it on together with a consumer: a broker that keeps messages in
	// queues only, as RabbitMQ does, has no place for one that nobody consumes, and it stays in the outbox.
	Announce bool `yaml:"announce" doc:"whether email.sent is published for each letter; it needs a consumer"`
	// Confirmation is the letter for payments.completed.
	Confirmation Confirmation `yaml:"confirmation" doc:"the letter for payments.completed; {payment_id}, {from}, {to}, {amount} and {currency} stand for the payment's"`
	// SMTP is the mail server, with transport "smtp".
	SMTP SMTPConfig `yaml:"smtp" doc:"the mail server, with transport smtp"`
}

// Confirmation is the letter for a completed payment. {payment_id}, {from}, {to}, {amount} and {currency} stand for the payment's.
type Confirmation struct {
	// To is the recipient. Defaults to "{to}@example.org".
	To string `yaml:"to" doc:"the recipient"`
	// Subject defaults to "Payment {payment_id} completed".
	Subject string `yaml:"subject" doc:"the subject"`
	// Text is the body. Defaults to a sentence with all fields.
	Text string `yaml:"text" doc:"the body"`
}

// SMTPConfig says how to reach the mail server.
type SMTPConfig struct {
	// Host is the server's name or address; its certificate must be valid for it.
	Host string `yaml:"host" doc:"the server's name"`
	// Port defaults to 587 with starttls, 465 with implicit, 25 with none.
	Port int `yaml:"port" doc:"587 with starttls, 465 with implicit, 25 with none unless set"`
	// TLS is "starttls" (refuses a server without it), "implicit" or "none".
	//
	// Defaults to "starttls".
	TLS string `yaml:"tls" doc:"starttls, implicit or none"`
	// CAFile has the certificates, in PEM, that the server's is checked against. Defaults to the system's.
	CAFile string `yaml:"ca_file" doc:"certificates in PEM that the server's is checked against; the system's unless set"`
	// Username logs in, by PLAIN or LOGIN; empty for no login. It needs TLS, except on a loopback host.
	Username string `yaml:"username" doc:"for the login; none unless set"`
	// Password is for the login; or PasswordFile, which is read again for each letter, so that it can be rotated.
	Password     Secret `yaml:"password" doc:"for the login" secret:"true"`
	PasswordFile string `yaml:"password_file" doc:"a file with the password, read again for each letter"`
	// HelloName is how this machine names itself to the server. Defaults to its host name.
	HelloName string `yaml:"hello_name" doc:"how this machine names itself to the server; its host name unless set"`
	// Timeout bounds a letter from the connection to the server's last answer. A server may take long over a letter, and when
	// the time is over before its last answer, a person has to decide; do not make it short.
	//
	// Defaults to 30s.
	Timeout time.Duration `yaml:"timeout" doc:"for one letter, from the connection to the last answer"`
}

// Secret is text that no printing shows.
type Secret string

// String hides the text.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return "redacted"
}

// GoString hides the text.
func (s Secret) GoString() string { return s.String() }

// LogValue hides the text.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText hides the text in JSON and YAML.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Defaults returns the configuration that stands before anything is read.
func (Config) Defaults() Config {
	return Config{
		Transport: transportFolder,
		Folder:    "./oncemill-data/mail",
		From:      "oncemill@localhost",
		Confirmation: Confirmation{
			To:      "{to}@example.org",
			Subject: "Payment {payment_id} completed",
			Text:    "{amount} {currency} were paid from {from} to {to}.\n\nPayment {payment_id}\n",
		},
		SMTP: SMTPConfig{TLS: tlsStart, Timeout: 30 * time.Second},
	}
}

// Validate returns all problems, each with the name of its key.
func (c Config) Validate() error {
	var problems []error
	refuse := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if _, err := parseAddress("from", c.From); err != nil {
		problems = append(problems, err)
	} else if !validDomain(c.domain()) {
		refuse("domain: must be a domain name such as example.org")
	}
	switch c.Transport {
	case transportFolder:
		if c.Folder == "" {
			refuse("folder: is missing")
		}
	case transportSMTP:
		if c.From == (Config{}).Defaults().From {
			refuse("from: is needed with transport smtp")
		}
		problems = append(problems, c.SMTP.validate()...)
	default:
		refuse("transport: must be folder or smtp")
	}
	return errors.Join(append(problems, c.Confirmation.validate()...)...)
}

func (c SMTPConfig) validate() (problems []error) {
	refuse := func(text string) { problems = append(problems, errors.New("smtp."+text)) }
	if c.Host == "" {
		refuse("host: is missing")
	}
	if c.Port < 0 || c.Port > 65535 {
		refuse("port: must be 1 to 65535")
	}
	if c.TLS != tlsNone && c.TLS != tlsStart && c.TLS != tlsImplicit {
		refuse("tls: must be starttls, implicit or none")
	}
	if c.Timeout <= 0 {
		refuse("timeout: must be more than zero")
	}
	if c.Password != "" && c.PasswordFile != "" {
		refuse("password: is set together with password_file; keep one")
	}
	if c.Username != "" && c.TLS == tlsNone && !loopback(c.Host) {
		refuse("username: the password would travel in clear text; set tls to starttls or implicit")
	}
	if strings.ContainsAny(c.HelloName, " \r\n\t") {
		refuse("hello_name: must be a host name")
	}
	return problems
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// domain is the right part of each Message-ID.
func (c Config) domain() string {
	if c.Domain != "" {
		return c.Domain
	}
	from, err := parseAddress("from", c.From)
	if err != nil {
		return ""
	}
	return from.Address[strings.LastIndexByte(from.Address, '@')+1:]
}

func (c SMTPConfig) port() int {
	switch {
	case c.Port != 0:
		return c.Port
	case c.TLS == tlsImplicit:
		return 465
	case c.TLS == tlsNone:
		return 25
	}
	return 587
}
