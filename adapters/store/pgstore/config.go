package pgstore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/oncemill/oncemill/adapters/internal/pgwire"
	"github.com/oncemill/oncemill/adapters/store"
)

// Config sets up the store.
type Config struct {
	// DSN is a connection string: postgres://user:password@host:5432/database?sslmode=verify-full&sslrootcert=/etc/ca.pem, or
	// key=value words. It may name several hosts. Where neither it nor DSNFile is set, the PG… variables of the environment count.
	DSN string `yaml:"dsn"`
	// DSNFile is a file with the connection string. It is read again for each new connection, so that a password can be
	// changed without a restart.
	DSNFile string `yaml:"dsn_file"`
	// Schema is where the tables are. Through a PgBouncer in transaction mode leave it at the default, or set the
	// search_path of the role: a pooler hands sessions around. Defaults to public.
	Schema string `yaml:"schema"`
	// MaxOpen bounds the connections of this process. Defaults to what the application can use at once.
	MaxOpen int `yaml:"max_open"`
	// LockTimeout bounds each wait for a rival's lock. Defaults to 3s.
	LockTimeout time.Duration `yaml:"lock_timeout"`
}

const (
	defaultSchema  = "public"
	defaultMaxOpen = 16
)

var schemaName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,62}$`)

// Validate reports all that is wrong, without connecting.
func (c Config) Validate() error {
	var errs []error
	if c.DSN != "" && c.DSNFile != "" {
		errs = append(errs, errors.New("dsn and dsn_file are both set: keep one"))
	}
	if c.Schema != "" && !schemaName.MatchString(c.Schema) {
		errs = append(errs, fmt.Errorf("schema %q: use letters, digits and '_'", c.Schema))
	}
	if c.MaxOpen < 0 {
		errs = append(errs, errors.New("max_open is negative"))
	}
	if c.LockTimeout < 0 {
		errs = append(errs, errors.New("lock_timeout is negative"))
	}
	if c.DSN != "" {
		if _, err := pgwire.Parse(c.DSN); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (c Config) withDefaults() Config {
	if c.Schema == "" {
		c.Schema = defaultSchema
	}
	return c
}

// connConfig reads the connection string, from its file where it is in one.
func (c Config) connConfig(_ context.Context, opts store.Options) (*pgx.ConnConfig, error) {
	dsn := c.DSN
	if c.DSNFile != "" {
		text, err := os.ReadFile(c.DSNFile)
		if err != nil {
			return nil, fmt.Errorf("read dsn_file: %w", err)
		}
		dsn = strings.TrimSpace(string(text))
	}
	cfg, err := pgwire.Parse(dsn)
	if err != nil {
		return nil, err
	}
	if c.Schema != defaultSchema {
		cfg.RuntimeParams["search_path"] = pgx.Identifier{c.Schema}.Sanitize()
	}
	if opts.ClientName != "" && cfg.RuntimeParams["application_name"] == "" {
		cfg.RuntimeParams["application_name"] = opts.ClientName
	}
	if opts.Dial != nil {
		cfg.DialFunc = opts.Dial
	}
	return cfg, nil
}
