package sqlbroker_test

import (
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker/sqlbroker"
)

func TestConfig(t *testing.T) {
	t.Parallel()
	check := func(text string) (cfg sqlbroker.Config, err error) {
		err = sqlbroker.Factory().Check(func(into any) error {
			target := into.(*sqlbroker.Config)
			defer func() { cfg = *target }()
			if text == "" { // an empty document would reset the defaults
				return nil
			}
			return yaml.UnmarshalWithOptions([]byte(text), target, yaml.Strict())
		})
		return cfg, err
	}
	cfg, err := check("")
	require.NoError(t, err)
	require.Equal(t, sqlbroker.Config{
		Visibility: 30 * time.Second, Poll: 100 * time.Millisecond, Topology: sqlbroker.Declare,
		Retention: 24 * time.Hour, PublishTimeout: 30 * time.Second, MaxOpen: 16,
	}, cfg)
	cfg, err = check("{dsn: 'postgres://u@h/db', schema: mine, visibility: 10s, poll: 50ms, topology: off, retention: 0s}")
	require.NoError(t, err)
	require.Zero(t, cfg.Retention)
	for _, dsn := range []string{
		"mysql://u:p%2Fw@h/db", "mariadb://u@h:3307/db", "u:p@tcp(h:3306)/db", "u@unix(/run/mysqld.sock)/db", "u:p=w@tcp(h)/db", "u@/db", "/db",
		"postgres://u:p@h/db", "postgresql:///db?host=/run/postgresql", "host=/run/postgresql dbname=db", "host=h password='@tcp(h)/'",
	} {
		_, err := check("dsn: \"" + dsn + "\"")
		require.NoError(t, err, dsn)
	}
	for text, says := range map[string]string{
		"{dsn: 'postgres://u@h/db', dsn_file: f}": "keep one",
		"schema: 'a b'":                "schema",
		"visibility: 10ms":             "at least 1s",
		"poll: 1ms":                    "10ms to 10s",
		"topology: maybe":              "declare, verify or off",
		"publish_timeout: 0s":          "publish_timeout",
		"max_open: 1":                  "at least 3",
		"dsn: 'postgres://u:p/w@h/db'": "percent-encoded",
		"dsn: 'mysql://u:p@h/'":        "names no database",
		"dsn: 'u:p@tcp(h'":             "cannot be understood",
		"visibilty: 10s":               "visibilty",
	} {
		_, err := check(text)
		require.ErrorContains(t, err, says, text)
	}
}
