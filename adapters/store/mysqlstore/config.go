package mysqlstore

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/oncemill/oncemill/adapters/internal/mysqlwire"
	"github.com/oncemill/oncemill/adapters/store"
)

// Config sets up the store.
type Config struct {
	// DSN is a connection string: user:password@tcp(host:3306)/database, with the parameters of github.com/go-sql-driver/mysql, or
	// a URL mysql://user:password@host:3306/database, whose reserved characters are percent-encoded.
	DSN string `yaml:"dsn"`
	// DSNFile is a file with the connection string. It is read again for each new connection, so that a password can be
	// changed without a restart.
	DSNFile string `yaml:"dsn_file"`
	// Schema is the database where the tables are, made by the migration where it is missing. Defaults to that of the connection string.
	Schema string `yaml:"schema"`
	// MaxOpen bounds the connections of this process. Defaults to what the application can use at once.
	MaxOpen int `yaml:"max_open"`
	// LockTimeout bounds each wait for a rival's lock, in whole seconds: a fraction counts as one. Defaults to 3s.
	LockTimeout time.Duration `yaml:"lock_timeout"`

	// Clock replaces the server's clock in tests: an expression that is a UTC time, a datetime(6).
	Clock string `yaml:"-"`
}

const defaultMaxOpen = 16

var schemaName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_-]{0,63}$`)

// Validate reports all that is wrong, without connecting.
func (c Config) Validate() error {
	var errs []error
	switch {
	case c.DSN != "" && c.DSNFile != "":
		errs = append(errs, errors.New("dsn and dsn_file are both set: keep one"))
	case c.DSN == "" && c.DSNFile == "":
		errs = append(errs, errors.New("dsn is missing: write user:password@tcp(host:3306)/database, or set dsn_file"))
	}
	if c.Schema != "" && !schemaName.MatchString(c.Schema) {
		errs = append(errs, fmt.Errorf("schema %q: use letters, digits, '-' and '_'", c.Schema))
	}
	if c.MaxOpen < 0 {
		errs = append(errs, errors.New("max_open is negative"))
	}
	if c.LockTimeout < 0 {
		errs = append(errs, errors.New("lock_timeout is negative"))
	}
	if c.DSN != "" {
		if cfg, err := mysqlwire.Parse(c.DSN); err != nil {
			errs = append(errs, err)
		} else if cfg.DBName == "" && c.Schema == "" {
			errs = append(errs, errNoDatabase)
		}
	}
	return errors.Join(errs...)
}

var errNoDatabase = errors.New("dsn names no database: put its name at the end, or set schema")

// driverConfig reads the connection string, from its file where it is in one, and sets what the store depends on.
func (c Config) driverConfig(opts store.Options) (*mysql.Config, error) {
	dsn := c.DSN
	if c.DSNFile != "" {
		text, err := os.ReadFile(c.DSNFile)
		if err != nil {
			return nil, fmt.Errorf("read dsn_file: %w", err)
		}
		dsn = strings.TrimSpace(string(text))
	}
	cfg, err := mysqlwire.Parse(dsn)
	if err != nil {
		return nil, err
	}
	if c.Schema != "" {
		cfg.DBName = c.Schema
	}
	if cfg.DBName == "" {
		return nil, errNoDatabase
	}
	cfg.DialFunc = opts.Dial
	return cfg, mysqlwire.Prepare(cfg, opts.ClientName)
}
