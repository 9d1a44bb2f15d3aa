package pgstore_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/store"
	"github.com/oncemill/oncemill/adapters/store/pgstore"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/keystore"
)

// secure is a server with TLS, and the certificates of it and of its clients.
type secure struct {
	*testenv.Server
	certs testenv.Certificates
}

func newSecure(t *testing.T) secure {
	t.Helper()
	certs := testenv.NewCertificates(t)
	return secure{Server: testenv.PrivateTLS(t, "postgres", certs), certs: certs}
}

// asOwner runs statements as the role that may do everything.
func (s secure) asOwner(t *testing.T, statements string) {
	t.Helper()
	owner, err := pgstore.Open(t.Context(), pgstore.Config{DSN: s.Address}, store.Options{})
	require.NoError(t, err)
	run(t, owner, statements)
	require.NoError(t, owner.Close())
}

// dsn is for a role with a password; query is NAME=VALUE parts that come after sslmode=verify-full and the right authority, and count.
func (s secure) dsn(role, password string, query ...string) string {
	u := url.URL{Scheme: "postgres", User: url.UserPassword(role, password), Host: s.TLS, Path: "/oncemill"}
	q := url.Values{"sslmode": {"verify-full"}, "sslrootcert": {s.certs.CA}}
	for _, part := range query {
		name, value, _ := strings.Cut(part, "=")
		q.Set(name, value)
	}
	u.RawQuery = q.Encode()
	return u.String()
}

func TestTLSVerifyFull(t *testing.T) {
	t.Parallel()
	server := newSecure(t)
	const password = "s3cr3t-Zq!/?@:"
	server.asOwner(t, `CREATE ROLE shop LOGIN PASSWORD '`+password+`'; CREATE SCHEMA shop AUTHORIZATION shop;
		CREATE ROLE mutual LOGIN PASSWORD '`+password+`'; CREATE SCHEMA mutual AUTHORIZATION mutual`)
	certificate := []string{"sslcert=" + server.certs.Client, "sslkey=" + server.certs.ClientKey}

	for role, query := range map[string][]string{"shop": nil, "mutual": certificate} {
		s, err := pgstore.Open(t.Context(), pgstore.Config{DSN: server.dsn(role, password, query...), Schema: role}, store.Options{})
		require.NoError(t, err, role)
		require.NoError(t, s.Migrate(t.Context(), nil), role)
		tx := begin(t, s, keystore.TxOptions{})
		require.Equal(t, keystore.Fresh, claimKey(t, tx, "a"), role)
		require.NoError(t, tx.Commit(t.Context(), completed("a")), role)
		require.Equal(t, keystore.Completed, peek(t, s, "a").State, role)
		var encrypted bool
		require.NoError(t, s.DB().Get(&encrypted, `SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()`), role)
		require.True(t, encrypted, role)
		require.NoError(t, s.Close(), role)
	}

	encoded := url.QueryEscape(password)
	byAddress := strings.Replace(server.dsn("shop", password), "localhost", "127.0.0.1", 1)
	for name, refused := range map[string]struct{ dsn, advice string }{
		"wrong authority":    {server.dsn("shop", password, "sslrootcert="+server.certs.OtherCA), "set sslrootcert in dsn"},
		"wrong name":         {byAddress, "certificate is for another name"},
		"no TLS":             {server.dsn("shop", password, "sslmode=disable"), "another sslmode"},
		"no certificate":     {server.dsn("mutual", password), "set sslcert and sslkey"},
		"wrong password":     {server.dsn("shop", password+"x"), "check user and password"},
		"no such database":   {strings.Replace(server.dsn("shop", password), "/oncemill", "/nowhere", 1), "make the database"},
		"authority not read": {server.dsn("shop", password, "sslrootcert=/no/such/file"), "open /no/such/file"},
	} {
		var log bytes.Buffer
		_, err := pgstore.Open(t.Context(), pgstore.Config{DSN: refused.dsn}, store.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		require.ErrorContains(t, err, refused.advice, name)
		for _, text := range []string{fmt.Sprintf("%+v", err), log.String()} {
			require.NotContains(t, text, "s3cr3t", name)
			require.NotContains(t, text, encoded, name)
		}
	}
}

// TestTLSPasswordChangesInMidLoad: the role's password is changed and its sessions are ended, and only then the file tells the new one. The
// store goes on by itself, and each effect is there once.
func TestTLSPasswordChangesInMidLoad(t *testing.T) {
	t.Parallel()
	server := newSecure(t)
	server.asOwner(t, `CREATE ROLE shop LOGIN PASSWORD 'first'; CREATE SCHEMA shop AUTHORIZATION shop`)
	file := filepath.Join(t.TempDir(), "dsn")
	tell := func(password string) {
		// By a rename, as secrets are mounted: nobody reads one half.
		require.NoError(t, os.WriteFile(file+".new", []byte(server.dsn("shop", password)+"\n"), 0o600))
		require.NoError(t, os.Rename(file+".new", file))
	}
	tell("first")
	s, err := pgstore.Open(t.Context(), pgstore.Config{DSNFile: file, Schema: "shop"}, store.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	require.NoError(t, s.Migrate(t.Context(), nil))
	l := startLoad(t, s)
	l.progress(t)
	s.Outbox().Wake() // opens a connection that listens

	for _, password := range []string{"second", "third"} {
		server.asOwner(t, `ALTER ROLE shop PASSWORD '`+password+`'; SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'shop'`)
		testenv.Eventually(t, patience, func() error {
			if err := s.Ping(t.Context()); err == nil {
				return errNobody
			}
			return nil
		})
		tell(password)
		l.progress(t)
	}
	l.stop(t)
	testenv.Eventually(t, patience, func() error {
		var listening int
		require.NoError(t, s.DB().Get(&listening, `SELECT count(*) FROM pg_stat_activity WHERE query ILIKE 'listen%' AND usename = 'shop'`))
		if listening != 1 {
			return fmt.Errorf("%d connections listen", listening)
		}
		return nil
	})
}
