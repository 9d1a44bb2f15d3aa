package natsbroker

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/middleware/envelope"
)

// Values of Config.Topology.
const (
	topologyDeclare = "declare"
	topologyVerify  = "verify"
	topologyOff     = "off"
)

// Config is the configuration of the broker "nats".
type Config struct {
	// URL names the servers, separated by commas: nats://host:4222,tls://other:4222. A user and password, or a token, may
	// stand in it; they are taken out and never logged. Defaults to nats://127.0.0.1:4222.
	URL string `yaml:"url"`
	// URLFile is a file that holds the URL instead. User and password, or token, are read from it again
	// for each connection; other hosts need a restart.
	URLFile string `yaml:"url_file"`
	// CredsFile is a NATS credentials file (a JWT and its seed), read again for each connection.
	CredsFile string `yaml:"creds_file"`
	// NKeyFile is the seed of an NKey user.
	NKeyFile string `yaml:"nkey_file"`
	User     string `yaml:"user"`
	Password string `yaml:"password"`
	// PasswordFile is a file that holds the password, read again for each connection.
	PasswordFile string `yaml:"password_file"`
	// TLS is needed for a private certificate authority and for client certificates; the scheme tls:// alone uses the system's authorities.
	TLS TLS `yaml:"tls"`
	// Topology is "declare" to make streams and consumers, "verify" to only check that they are there, "off" to take
	// them as they are. Defaults to "declare".
	Topology string `yaml:"topology"`
	// Replicas is the number of copies of each stream that is made here. With fewer than 3
	// a confirmed message may be lost with its machine. Defaults to 1.
	Replicas int `yaml:"replicas"`
	// Placement says on which servers of a cluster streams that are made here are kept.
	Placement Placement `yaml:"placement"`
	// Domain is the JetStream domain, where it is not that of the servers the client connects to.
	Domain string `yaml:"domain"`
	// APIPrefix is what JetStream's API is imported under, such as JS.hub.API, where another account shares it with ours.
	APIPrefix string `yaml:"api_prefix"`
	// MaxAge is how long a stream that is made here keeps a message, consumed or not. 0 keeps all. Defaults to 336h (14 days).
	MaxAge time.Duration `yaml:"max_age"`
	// AckWait is how long a message of a dead process waits for its redelivery. A slow
	// handler needs no longer one: its deliveries are kept alive. Defaults to 30s.
	AckWait time.Duration `yaml:"ack_wait"`
	// Topics gives logical topics other names than their own.
	Topics map[string]Topic `yaml:"topics"`
}

// TLS names certificates, in files read again for each connection.
type TLS struct {
	// CA is the certificate authority of the servers.
	CA string `yaml:"ca"`
	// Cert and Key are the client's certificate, for mutual TLS.
	Cert string `yaml:"cert"`
	Key  string `yaml:"key"`
}

// Placement chooses servers.
type Placement struct {
	// Cluster is the name of the cluster, in a super-cluster.
	Cluster string `yaml:"cluster"`
	// Tags are those that a server must have, all of them.
	Tags []string `yaml:"tags"`
}

// Topic is the physical names of one logical topic.
type Topic struct {
	// Stream is the name of the stream. Defaults to the topic, with '.' as '_' and '_' as '='.
	Stream string `yaml:"stream"`
	// Subject is what producers publish to. Defaults to the topic.
	Subject string `yaml:"subject"`
	// Durables are the names of groups' durable consumers. A name defaults to the group, written as a stream's name is.
	Durables map[string]string `yaml:"durables"`
}

// EmbeddedConfig is the configuration of the broker "embedded".
type EmbeddedConfig struct {
	// Port is the TCP port on loopback that the server listens on. 0 takes a free one and keeps it where possible. Defaults to 0.
	Port int `yaml:"port"`
	// MaxAge is how long a stream keeps a message, consumed or not. 0 keeps all. Defaults to 336h (14 days).
	MaxAge time.Duration `yaml:"max_age"`
}

const (
	defaultMaxAge  = 14 * 24 * time.Hour
	defaultAckWait = 30 * time.Second
	// embeddedAckWait is shorter: on one machine no network delays the keep-alives.
	embeddedAckWait = 10 * time.Second
	minAckWait      = time.Second
)

func defaultConfig() Config {
	return Config{URL: "nats://127.0.0.1:4222", Topology: topologyDeclare, Replicas: 1, MaxAge: defaultMaxAge, AckWait: defaultAckWait}
}

func defaultEmbeddedConfig() EmbeddedConfig { return EmbeddedConfig{MaxAge: defaultMaxAge} }

// broker is the configuration of a connection to the embedded server.
func (c EmbeddedConfig) broker() Config {
	return Config{Topology: topologyDeclare, Replicas: 1, MaxAge: c.MaxAge, AckWait: embeddedAckWait}
}

func (c *EmbeddedConfig) validate() error {
	var errs []error
	if c.Port < 0 || c.Port > 65535 {
		errs = append(errs, fmt.Errorf("port: %d is no TCP port; use 1 to 65535, or 0 for a free one", c.Port))
	}
	return errors.Join(append(errs, validateMaxAge(c.MaxAge))...)
}

func validateMaxAge(age time.Duration) error {
	if age < 0 || age > 0 && age < time.Second {
		return errors.New("max_age: at least 1s, or 0 to keep all")
	}
	return nil
}

// validate reports all problems at once.
func (c *Config) validate() error {
	errs := []error{c.validateAccess(), validateMaxAge(c.MaxAge)}
	if !slices.Contains([]string{topologyDeclare, topologyVerify, topologyOff}, c.Topology) {
		errs = append(errs, fmt.Errorf("topology: %q is not declare, verify or off", c.Topology))
	}
	if c.Replicas < 1 || c.Replicas > 5 {
		errs = append(errs, fmt.Errorf("replicas: %d is not between 1 and 5", c.Replicas))
	}
	if c.Domain != "" && c.APIPrefix != "" {
		errs = append(errs, errors.New("use only one of domain and api_prefix"))
	}
	if strings.ContainsAny(c.Domain, " .*>\t\r\n") || strings.ContainsAny(c.APIPrefix, " *>\t\r\n") || strings.HasSuffix(c.APIPrefix, ".") {
		errs = append(errs, errors.New("domain is one word, api_prefix is words with dots between them, such as JS.hub.API"))
	}
	if c.AckWait < minAckWait {
		errs = append(errs, fmt.Errorf("ack_wait: at least %s", minAckWait))
	}
	for topic, named := range c.Topics {
		errs = append(errs, named.validate(topic))
	}
	return errors.Join(errs...)
}

// servers is nil where any will do.
func (p Placement) servers() *jetstream.Placement {
	if p.Cluster == "" && len(p.Tags) == 0 {
		return nil
	}
	return &jetstream.Placement{Cluster: p.Cluster, Tags: p.Tags}
}

// api is what the subjects of JetStream's API begin with.
func (c *Config) api() string {
	switch {
	case c.Domain != "":
		return "$JS." + c.Domain + ".API"
	case c.APIPrefix != "":
		return c.APIPrefix
	}
	return strings.TrimSuffix(jetstream.DefaultAPIPrefix, ".")
}

func (c *Config) validateAccess() error {
	var errs []error
	if c.URLFile == "" {
		_, err := parseServers(c.URL)
		errs = append(errs, err)
	}
	ways := 0
	for _, way := range []string{c.CredsFile, c.NKeyFile, c.User} {
		if way != "" {
			ways++
		}
	}
	if ways > 1 {
		errs = append(errs, errors.New("use only one of creds_file, nkey_file and user"))
	}
	if c.Password != "" && c.PasswordFile != "" {
		errs = append(errs, errors.New("use only one of password and password_file"))
	}
	if c.User == "" && (c.Password != "" || c.PasswordFile != "") {
		errs = append(errs, errors.New("password: set user too"))
	}
	if (c.TLS.Cert == "") != (c.TLS.Key == "") {
		errs = append(errs, errors.New("tls: cert and key belong together"))
	}
	return errors.Join(errs...)
}

func (t Topic) validate(topic string) error {
	errs := []error{envelope.ValidateTopic(topic)}
	names := []string{t.Stream}
	for _, name := range t.Durables {
		names = append(names, name)
	}
	for _, name := range names {
		if strings.ContainsAny(name, " \t\r\n\f.*>\\/") {
			errs = append(errs, fmt.Errorf("topics: %s: %q is no name of a stream or consumer", topic, name))
		}
	}
	if strings.ContainsAny(t.Subject, " \t\r\n*>") || strings.HasPrefix(t.Subject, ".") || strings.HasSuffix(t.Subject, ".") || strings.Contains(t.Subject, "..") {
		errs = append(errs, fmt.Errorf("topics: %s: %q is no subject to publish to", topic, t.Subject))
	}
	return errors.Join(errs...)
}

// readSecret reads a file that holds one secret, without the line's end. Its errors name the file only.
func readSecret(file string) (string, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("reading secret: %w", err)
	}
	return strings.TrimRight(string(data), "\r\n"), nil
}
