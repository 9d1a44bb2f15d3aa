package mysqlstore

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
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
}

const (
	defaultMaxOpen = 16
	dialTimeout    = 10 * time.Second
)

var schemaName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_-]{0,63}$`)

// errDSN never carries the string itself: it may have a password at any place.
var errDSN = errors.New("dsn cannot be understood: write user:password@tcp(host:3306)/database, or " +
	"mysql://user:password@host:3306/database with the reserved characters of the password percent-encoded")

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
		if cfg, err := parseDSN(c.DSN); err != nil {
			errs = append(errs, err)
		} else if cfg.DBName == "" && c.Schema == "" {
			errs = append(errs, errNoDatabase)
		}
	}
	return errors.Join(errs...)
}

var errNoDatabase = errors.New("dsn names no database: put its name at the end, or set schema")

// parseDSN reads both forms of a connection string.
func parseDSN(dsn string) (*mysql.Config, error) {
	scheme, _, isURL := strings.Cut(dsn, "://")
	if isURL && (scheme == "mysql" || scheme == "mariadb") {
		return parseURL(dsn)
	}
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, errDSN
	}
	return cfg, nil
}

func parseURL(dsn string) (*mysql.Config, error) {
	u, err := url.Parse(dsn)
	if err != nil || u.Host == "" {
		return nil, errDSN
	}
	host := u.Host
	if u.Port() == "" {
		host += ":3306"
	}
	// The parameters are the driver's to read; user and password it would not decode.
	cfg, err := mysql.ParseDSN("tcp(" + host + ")/?" + u.RawQuery)
	if err != nil {
		return nil, errDSN
	}
	password, _ := u.User.Password()
	cfg.User, cfg.Passwd, cfg.DBName = u.User.Username(), password, strings.TrimPrefix(u.Path, "/")
	return cfg, nil
}

// driverConfig reads the connection string, from its file where it is in one, and sets what the store depends on.
func (c Config) driverConfig(clientName string) (*mysql.Config, error) {
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
	if c.Schema != "" {
		cfg.DBName = c.Schema
	}
	if cfg.DBName == "" {
		return nil, errNoDatabase
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = dialTimeout
	}
	if clientName != "" && cfg.ConnectionAttributes == "" {
		cfg.ConnectionAttributes = "program_name:" + strings.NewReplacer(",", " ", ":", " ").Replace(clientName)
	}
	cfg.ParseTime, cfg.Loc = true, time.UTC
	cfg.ClientFoundRows = true   // the rows that a statement found, as in other databases: also those that were as it wants them
	cfg.InterpolateParams = true // one round trip for a statement, not three
	cfg.MultiStatements = false
	cfg.MaxAllowedPacket = 0 // the server's
	cfg.Collation, cfg.Params = "", withoutCharset(cfg.Params)
	cfg.Logger = discard{}
	return cfg, cfg.Apply(mysql.Charset("utf8mb4", ""))
}

// withoutCharset leaves out what would change how text is sent.
func withoutCharset(params map[string]string) map[string]string {
	for _, name := range []string{"character_set_client", "character_set_connection", "collation_connection", "time_zone"} {
		delete(params, name)
	}
	return params
}

// discard is the driver's log: what it would tell comes back as an error as well.
type discard struct{}

func (discard) Print(...any) {}
