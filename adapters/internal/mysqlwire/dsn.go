package mysqlwire

import (
	"errors"
	"net/url"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
)

const dialTimeout = 10 * time.Second

// ErrDSN never carries the string itself: it may have a password at any place.
var ErrDSN = errors.New("dsn cannot be understood: write user:password@tcp(host:3306)/database, or " +
	"mysql://user:password@host:3306/database with the reserved characters of the password percent-encoded")

// Parse reads both forms of a connection string: the driver's, and a URL mysql:// or mariadb://. Its error is ErrDSN.
func Parse(dsn string) (*mysql.Config, error) {
	scheme, _, isURL := strings.Cut(dsn, "://")
	if isURL && (scheme == "mysql" || scheme == "mariadb") {
		return parseURL(dsn)
	}
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, ErrDSN
	}
	return cfg, nil
}

func parseURL(dsn string) (*mysql.Config, error) {
	u, err := url.Parse(dsn)
	if err != nil || u.Host == "" {
		return nil, ErrDSN
	}
	host := u.Host
	if u.Port() == "" {
		host += ":3306"
	}
	// The parameters are the driver's to read; user and password it would not decode.
	cfg, err := mysql.ParseDSN("tcp(" + host + ")/?" + u.RawQuery)
	if err != nil {
		return nil, ErrDSN
	}
	password, _ := u.User.Password()
	cfg.User, cfg.Passwd, cfg.DBName = u.User.Username(), password, strings.TrimPrefix(u.Path, "/")
	return cfg, nil
}

// Prepare sets what the adapters depend on: times in UTC, text in UTF-8, one round trip for a statement, counts of the rows that a statement
// found, and the name of the client for the server's lists.
func Prepare(cfg *mysql.Config, clientName string) error {
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
	return cfg.Apply(mysql.Charset("utf8mb4", ""))
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
