// Package pgwire is what the adapters of PostgreSQL share: how its client says that a connection, and not a statement, failed, and what to do then.
package pgwire

import (
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/oncemill/oncemill/adapters/internal/tlsfault"
)

// ErrDSN never carries the string itself: it may have a password at any place.
var ErrDSN = errors.New("dsn cannot be understood: write postgres://user:password@host:5432/database, " +
	"with the reserved characters of the password percent-encoded")

// Parse understands a connection string. Its errors hold nothing of it but the name of a file that cannot be read.
func Parse(dsn string) (*pgx.ConnConfig, error) {
	cfg, err := pgx.ParseConfig(dsn)
	var file *fs.PathError
	switch {
	case errors.As(err, &file):
		return nil, fmt.Errorf("dsn: a file that it names: %w", file)
	case err != nil:
		return nil, ErrDSN
	}
	return cfg, nil
}

// Broken reports that the connection, not a statement, failed: none could be made, or it ended.
func Broken(err error) bool {
	var network net.Error
	var connecting *pgconn.ConnectError
	return errors.As(err, &connecting) || errors.As(err, &network) || pgconn.SafeToRetry(err) ||
		errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrConnDone) || errors.Is(err, pgconn.ErrConnClosed) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNREFUSED)
}

// SQLSTATE codes of a server that lets nobody in; see appendix A of PostgreSQL's manual.
const (
	invalidPassword      = "28P01"
	invalidAuthorization = "28000"
	unknownDatabase      = "3D000"
)

// Explain adds to the error of a first connection what to do about it.
func Explain(err error) error {
	settings := tlsfault.Settings{On: "TLS by sslmode in dsn", CA: "sslrootcert in dsn", Client: "sslcert and sslkey in dsn"}
	var said *pgconn.PgError
	advice := "check that the server runs, and dsn"
	if errors.As(err, &said) {
		switch said.Code {
		case invalidPassword:
			advice = "check user and password in dsn, or in the file of dsn_file"
		case invalidAuthorization:
			advice = "the server's pg_hba.conf wants another user, another sslmode, or a client's certificate: set sslcert and sslkey in dsn"
		case unknownDatabase:
			advice = "make the database, or name another in dsn"
		}
	} else if explained := settings.Explain(err); explained != err { //nolint:errorlint // whether it is another value
		return explained
	}
	return fmt.Errorf("%w; %s", err, advice)
}
