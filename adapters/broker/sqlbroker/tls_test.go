package sqlbroker_test

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/adapters/broker/sqlbroker"
	"github.com/oncemill/oncemill/internal/testenv"
)

// secureDSN is for a role with a password; query is NAME=VALUE parts that come after sslmode=verify-full and the right authority, and count.
func secureDSN(server *testenv.Server, certs testenv.Certificates, role, password string, query ...string) string {
	u := url.URL{Scheme: "postgres", User: url.UserPassword(role, password), Host: server.TLS, Path: "/oncemill"}
	q := url.Values{"sslmode": {"verify-full"}, "sslrootcert": {certs.CA}}
	for _, part := range query {
		name, value, _ := strings.Cut(part, "=")
		q.Set(name, value)
	}
	u.RawQuery = q.Encode()
	return u.String()
}

// PostgreSQL with a certificate that is checked: every connection is encrypted, that which listens, too; what is refused is explained without
// the password; a changed password comes from the file, without a restart.
func TestTLSVerifyFull(t *testing.T) {
	t.Parallel()
	certs := testenv.NewCertificates(t)
	server := testenv.PrivateTLS(t, "postgres", certs)
	const password = "s3cr3t-Zq!/?@:"
	owner, err := sql.Open("pgx", server.Address)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, owner.Close()) })
	execute(t, owner, `CREATE ROLE shop LOGIN PASSWORD '`+password+`'; CREATE SCHEMA shop AUTHORIZATION shop;
		CREATE ROLE mutual LOGIN PASSWORD '`+password+`'; CREATE SCHEMA mutual AUTHORIZATION mutual`)

	certificate := []string{"sslcert=" + certs.Client, "sslkey=" + certs.ClientKey}
	for role, query := range map[string][]string{"shop": nil, "mutual": certificate} {
		file := filepath.Join(t.TempDir(), "dsn")
		tell := func(password string) {
			require.NoError(t, os.WriteFile(file+".new", []byte(secureDSN(server, certs, role, password, query...)), 0o600))
			require.NoError(t, os.Rename(file+".new", file))
		}
		tell(password)
		b := open(t, config(database{schema: role}, func(c *sqlbroker.Config) { c.DSNFile = file }))
		topic := testenv.Name(t, "t")
		declare(t, b, topic, "g")
		sub, msgs := subscribe(t, b, subscriptions(topic, "g")[0])
		publish(t, b.Publisher(), topic, "first")
		require.Equal(t, []string{"first"}, ackAll(t, msgs, 1))
		var all, encrypted int
		require.NoError(t, owner.QueryRow(`SELECT count(*), count(*) FILTER (WHERE ssl) FROM pg_stat_activity JOIN pg_stat_ssl USING (pid)
			WHERE usename = $1`, role).Scan(&all, &encrypted))
		require.Greater(t, all, 1)
		require.Equal(t, all, encrypted)

		execute(t, owner, `ALTER ROLE `+role+` PASSWORD 'second'`)
		tell("second")
		execute(t, owner, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '`+role+`'`)
		testenv.Eventually(t, patience, func() error { return b.Publisher().Publish(topic, newMessage("second")) })
		require.Equal(t, []string{"second"}, ackAll(t, msgs, 1))
		testenv.Eventually(t, patience, sub.Consuming)
		execute(t, owner, `ALTER ROLE `+role+` PASSWORD '`+password+`'`)
	}

	encoded := url.QueryEscape(password)
	right := secureDSN(server, certs, "shop", password)
	for name, refused := range map[string]struct{ dsn, advice string }{
		"wrong authority": {secureDSN(server, certs, "shop", password, "sslrootcert="+certs.OtherCA), "set sslrootcert in dsn"},
		"wrong name":      {strings.Replace(right, "localhost", "127.0.0.1", 1), "certificate is for another name"},
		"no TLS":          {secureDSN(server, certs, "shop", password, "sslmode=disable"), "another sslmode"},
		"no certificate":  {secureDSN(server, certs, "mutual", password), "set sslcert and sslkey"},
		"wrong password":  {secureDSN(server, certs, "shop", password+"x"), "check user and password"},
	} {
		var log bytes.Buffer
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		_, err := sqlbroker.Open(ctx, config(database{dsn: refused.dsn, schema: "shop"}, nil),
			broker.Options{Logger: slog.New(slog.NewTextHandler(&log, nil)), ClientName: "test"})
		cancel()
		require.ErrorContains(t, err, refused.advice, name)
		for _, text := range []string{fmt.Sprintf("%+v", err), log.String()} {
			require.NotContains(t, text, "s3cr3t", name)
			require.NotContains(t, text, encoded, name)
		}
	}
}
