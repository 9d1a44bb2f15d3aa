package sqlbroker

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Name is the broker's name, in Factory and in envelope.Delivery.
const Name = "sql"

// Ways to treat the topology.
const (
	Declare = "declare"
	Verify  = "verify"
	Off     = "off"
)

// Config is the adapter's configuration.
type Config struct {
	// DSN is a connection string of PostgreSQL 13 or later: postgres://user:password@host:5432/database, or key=value words. It
	// may name several hosts. Where neither it nor DSNFile is set, the PG… variables of the environment count.
	DSN string `yaml:"dsn"`
	// DSNFile is a file with the connection string. It is read again for each new connection, so that a password can be
	// changed without a restart.
	DSNFile string `yaml:"dsn_file"`
	// Schema is where the tables are. Defaults to public.
	Schema string `yaml:"schema"`
	// Visibility is how long a message of a dead process waits for its redelivery. A slow handler needs no longer one: a living
	// process keeps what it holds. At least 1s. Defaults to 30s.
	Visibility time.Duration `yaml:"visibility"`
	// Poll is how long an idle subscriber waits before it looks for messages that no notification told of: those of plain Watermill
	// publishers, and nacked ones that are due. 10ms to 10s. Defaults to 100ms.
	Poll time.Duration `yaml:"poll"`
	// Topology is declare (make what is missing), verify (fail when it is missing), or off. Defaults to declare.
	Topology string `yaml:"topology"`
	// Retention is how long a message stays in its table at least. After that it is deleted when every group has
	// settled it; a negative one keeps all. Defaults to 24h.
	Retention time.Duration `yaml:"retention"`
	// PublishTimeout bounds each publish. Defaults to 30s.
	PublishTimeout time.Duration `yaml:"publish_timeout"`
	// MaxOpen bounds the connections of this process; one more listens. Defaults to 16.
	MaxOpen int `yaml:"max_open"`
}

func defaults() Config {
	return Config{
		Schema: "public", Visibility: 30 * time.Second, Poll: 100 * time.Millisecond, Topology: Declare,
		Retention: 24 * time.Hour, PublishTimeout: 30 * time.Second, MaxOpen: 16,
	}
}

const minVisibility = time.Second

var schemaName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,62}$`)

// errDSN never carries the string itself: it may have a password at any place.
var errDSN = errors.New("dsn cannot be understood: write postgres://user:password@host:5432/database, " +
	"with the reserved characters of the password percent-encoded")

// Validate reports all that is wrong, without connecting.
func (c Config) Validate() error {
	var errs []error
	refuse := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	refuse(c.DSN != "" && c.DSNFile != "", "dsn and dsn_file are both set: keep one")
	refuse(!schemaName.MatchString(c.Schema), "schema %q: use letters, digits and '_'", c.Schema)
	refuse(c.Visibility < minVisibility, "visibility %s: at least %s", c.Visibility, minVisibility)
	refuse(c.Poll < 10*time.Millisecond || c.Poll > 10*time.Second, "poll %s: 10ms to 10s", c.Poll)
	refuse(c.Topology != Declare && c.Topology != Verify && c.Topology != Off, "topology %q: use declare, verify or off", c.Topology)
	refuse(c.PublishTimeout <= 0, "publish_timeout must be positive")
	refuse(c.MaxOpen < 3, "max_open %d: at least 3", c.MaxOpen)
	if c.DSN != "" {
		_, err := parseDSN(c.DSN)
		refuse(err != nil, "%w", err)
	}
	return errors.Join(errs...)
}

func parseDSN(dsn string) (*pgx.ConnConfig, error) {
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, errDSN
	}
	return cfg, nil
}

// connConfig reads the connection string, from its file where it is in one.
func (c Config) connConfig(clientName string) (*pgx.ConnConfig, error) {
	dsn := c.DSN
	if c.DSNFile != "" {
		text, err := os.ReadFile(c.DSNFile)
		if err != nil {
			return nil, fmt.Errorf("read dsn_file: %w", err)
		}
		dsn = strings.TrimSpace(string(text))
	}
	cfg, err := parseDSN(dsn)
	if err != nil {
		return nil, err
	}
	if clientName != "" && cfg.RuntimeParams["application_name"] == "" {
		cfg.RuntimeParams["application_name"] = clientName
	}
	return cfg, nil
}
