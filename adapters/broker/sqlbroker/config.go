package sqlbroker

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"

	"github.com/oncemill/oncemill/adapters/internal/mysqlwire"
	"github.com/oncemill/oncemill/adapters/internal/pgwire"
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
	// DSN is a connection string. Of PostgreSQL: postgres://user:password@host:5432/database, or key=value words; it may name
	// several hosts. Of MySQL or MariaDB: mysql://user:password@host:3306/database, or user:password@tcp(host:3306)/database. Where
	// neither it nor DSNFile is set, it is PostgreSQL by the PG… variables of the environment.
	DSN string `yaml:"dsn"`
	// DSNFile is a file with the connection string. It is read again for each new connection, so that a password can be
	// changed without a restart.
	DSNFile string `yaml:"dsn_file"`
	// Schema is where the tables are. Defaults to public on PostgreSQL, and to the database of the connection string on MySQL.
	Schema string `yaml:"schema"`
	// Visibility is how long a message of a dead process waits for its redelivery. A slow handler needs no longer one: a living
	// process keeps what it holds. At least 1s. Defaults to 30s.
	Visibility time.Duration `yaml:"visibility"`
	// Poll is how long an idle subscriber waits before it looks for messages that no notification told of: those of plain Watermill
	// publishers, nacked ones that are due, and on MySQL those of other processes. Where nothing notifies, it looks more often for a
	// moment after messages came. 10ms to 10s. Defaults to 100ms.
	Poll time.Duration `yaml:"poll"`
	// Topology is declare (make what is missing), verify (fail when it is missing), or off. Defaults to declare.
	Topology string `yaml:"topology"`
	// Retention is how long a message stays in its table at least. After that it is deleted when every group has
	// settled it; a negative one keeps all. Defaults to 24h.
	Retention time.Duration `yaml:"retention"`
	// PublishTimeout bounds each publish. Defaults to 30s.
	PublishTimeout time.Duration `yaml:"publish_timeout"`
	// MaxOpen bounds the connections of this process; on PostgreSQL one more listens. Defaults to 16.
	MaxOpen int `yaml:"max_open"`
}

func defaults() Config {
	return Config{
		Visibility: 30 * time.Second, Poll: 100 * time.Millisecond, Topology: Declare,
		Retention: 24 * time.Hour, PublishTimeout: 30 * time.Second, MaxOpen: 16,
	}
}

const minVisibility = time.Second

var schemaName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,62}$`)

// Validate reports all that is wrong, without connecting.
func (c Config) Validate() error {
	var errs []error
	refuse := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	refuse(c.DSN != "" && c.DSNFile != "", "dsn and dsn_file are both set: keep one")
	refuse(c.Schema != "" && !schemaName.MatchString(c.Schema), "schema %q: use letters, digits and '_'", c.Schema)
	refuse(c.Visibility < minVisibility, "visibility %s: at least %s", c.Visibility, minVisibility)
	refuse(c.Poll < 10*time.Millisecond || c.Poll > 10*time.Second, "poll %s: 10ms to 10s", c.Poll)
	refuse(c.Topology != Declare && c.Topology != Verify && c.Topology != Off, "topology %q: use declare, verify or off", c.Topology)
	refuse(c.PublishTimeout <= 0, "publish_timeout must be positive")
	refuse(c.MaxOpen < 3, "max_open %d: at least 3", c.MaxOpen)
	switch {
	case c.DSN == "":
	case isMySQL(c.DSN):
		_, err := c.mysqlConfig(c.DSN, "")
		refuse(err != nil, "%w", err)
	default:
		_, err := pgwire.Parse(c.DSN)
		refuse(err != nil, "%w", err)
	}
	return errors.Join(errs...)
}

// Both databases have forms of a connection string without a scheme: words with equals signs are PostgreSQL's, [user[:password]@][network[(address)]]/database
// is that of MySQL's driver.
var (
	wordsFirst = regexp.MustCompile(`^\s*\w+\s*=`)
	ofMySQL    = regexp.MustCompile(`(^|@)((tcp|unix)(\(.*\))?)?/`)
)

// isMySQL reports which server a connection string is for.
func isMySQL(dsn string) bool {
	scheme, _, isURL := strings.Cut(dsn, "://")
	switch {
	case isURL && (scheme == "mysql" || scheme == "mariadb"):
		return true
	case isURL && (scheme == "postgres" || scheme == "postgresql"):
		return false
	}
	return !wordsFirst.MatchString(dsn) && ofMySQL.MatchString(dsn)
}

// dsn reads the connection string, from its file where it is in one.
func (c Config) dsn() (string, error) {
	if c.DSNFile == "" {
		return c.DSN, nil
	}
	text, err := os.ReadFile(c.DSNFile)
	if err != nil {
		return "", fmt.Errorf("read dsn_file: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

// connConfig is for a connection to PostgreSQL, by the connection string as it is now.
func (c Config) connConfig(clientName string) (*pgx.ConnConfig, error) {
	dsn, err := c.dsn()
	if err != nil {
		return nil, err
	}
	cfg, err := pgwire.Parse(dsn)
	if err != nil {
		return nil, err
	}
	if clientName != "" && cfg.RuntimeParams["application_name"] == "" {
		cfg.RuntimeParams["application_name"] = clientName
	}
	return cfg, nil
}

// mysqlConfig is for a connection to MySQL.
func (c Config) mysqlConfig(dsn, clientName string) (*mysql.Config, error) {
	cfg, err := mysqlwire.Parse(dsn)
	if err != nil {
		return nil, err
	}
	if c.Schema != "" {
		cfg.DBName = c.Schema
	}
	if cfg.DBName == "" {
		return nil, errors.New("dsn names no database: put its name at the end, or set schema")
	}
	return cfg, mysqlwire.Prepare(cfg, clientName)
}
