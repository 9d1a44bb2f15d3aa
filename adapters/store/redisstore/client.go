package redisstore

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/oncemill/oncemill/adapters/store"
)

const (
	dialTimeout = 3 * time.Second
	// ioTimeout bounds one answer where the caller sets no bound.
	ioTimeout = 3 * time.Second
	// retries are of a step whose connection broke. Every step may be repeated: it knows its own token.
	retries = 2
)

// quiet takes the client library's own log, which is one for the process: what it would tell comes back as an error as well.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

var silence = sync.OnceFunc(func() { redis.SetLogger(quiet{}) })

// newClient makes the client; nothing is connected yet.
func newClient(c Config, from store.Options) (redis.UniversalClient, error) {
	silence()
	opts := &redis.UniversalOptions{
		ClientName: from.ClientName, Dialer: from.Dial, DialTimeout: dialTimeout, ReadTimeout: ioTimeout, WriteTimeout: ioTimeout,
		MaxRetries: retries, DialerRetries: 1, ContextTimeoutEnabled: true, DisableIdentity: true, PoolSize: max(from.Connections, 16),
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	opts.CredentialsProviderContext = func(context.Context) (string, string, error) { return c.credentials() }
	if _, _, err := c.credentials(); err != nil {
		return nil, err
	}
	if len(c.Cluster) > 0 {
		conf, err := c.tlsConfig(nil)
		if err != nil {
			return nil, err
		}
		opts.Addrs, opts.IsClusterMode, opts.TLSConfig = c.Cluster, true, conf
		return redis.NewUniversalClient(opts), nil
	}
	parsed, err := c.parseURL()
	if err != nil {
		return nil, err
	}
	if opts.TLSConfig, err = c.tlsConfig(parsed.TLSConfig); err != nil {
		return nil, err
	}
	opts.Addrs, opts.DB = []string{parsed.Addr}, parsed.DB
	if parsed.Network == "unix" {
		return nil, errors.New("url: a socket is not supported; write redis://host:6379/0")
	}
	return redis.NewUniversalClient(opts), nil
}
