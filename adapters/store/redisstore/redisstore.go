// Package redisstore keeps keys in Redis (6.2 or later, also as a cluster) or Valkey: leases of external handlers, and hints of completed keys.
// The effects, and the truth about their keys, are in the database.
//
// # Guarantees
//
// Every step (acquire, renew, complete, release, note, read) is one Lua script over one Redis key, so it is atomic, also in a cluster. A
// key in progress has an owner, a fencing token and a lease by the server's clock; a step of a holder whose token is not the key's any more
// changes nothing. Nothing but a completion makes a key completed: a bare claim never counts as done. A step whose answer was lost may
// be repeated: the same owner gets its own token again, a completion recognises its own.
//
// A key in progress has no time to live: Redis forgets it of its own accord only where it evicts keys that have none (maxmemory-policy
// allkeys-*). A completed key lives for the binding's retention.
//
// What Redis loses, it loses without a word. A completed key that is lost costs a transaction. A lease that is lost, while its call is
// under way, is no lease: another copy of the message may be called for at the same time, under the same downstream key, and a process that
// died during its call leaves nobody who knows of it. Redis loses leases when it evicts keys (allkeys-*), when it restarts without an
// append-only file, when it is flushed, and when a replica takes over that had not received them (replication is asynchronous). With
// appendfsync everysec a crash of its machine loses the last second or two. Capabilities says what holds for the server as it is
// configured; eviction and missing persistence refuse external handlers that rely on the lease, unless allow_loss is set.
//
// A crash of this process at any step leaves a lease that ends by itself, or a completed key.
package redisstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/adapters/store"
	"github.com/oncemill/oncemill/middleware/keystore"
)

// Factory makes the store of keys named "redis".
func Factory() store.KeysFactory {
	return store.KeysFactory{
		Name: "redis",
		Open: func(ctx context.Context, decode func(any) error, opts store.Options) (store.Keys, error) {
			var c Config
			if err := decode(&c); err != nil {
				return nil, err
			}
			return Open(ctx, c, opts)
		},
		Check: func(decode func(any) error) error {
			var c Config
			if err := decode(&c); err != nil {
				return err
			}
			return c.Validate()
		},
	}
}

// Store is one Redis server or cluster. Safe for concurrent use.
type Store struct {
	cfg     Config
	client  redis.UniversalClient
	scripts scripts
	caps    keystore.Capabilities
}

var _ store.Keys = (*Store)(nil)

// Open makes the client and looks at the server's settings. A server that does not answer is a caveat, not an error.
func Open(ctx context.Context, c Config, opts store.Options) (*Store, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	if c.Prefix == "" {
		c.Prefix = defaultPrefix
	}
	log := opts.Logger
	if log == nil {
		log = slog.Default()
	}
	client, err := newClient(c, opts)
	if err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	s := &Store{cfg: c, client: client, scripts: newScripts()}
	bounded, cancel := context.WithTimeout(ctx, inspectTimeout)
	defer cancel()
	s.caps = s.inspect(bounded)
	if s.caps.Forgets != "" {
		log.WarnContext(ctx, "redis can lose keys in ordinary operation", "because", s.caps.Forgets)
	}
	return s, nil
}

// Ping implements store.Keys.
func (s *Store) Ping(ctx context.Context) error {
	if err := s.client.Ping(ctx).Err(); err != nil {
		return fmt.Errorf("ping Redis: %w", err)
	}
	return nil
}

// Close implements store.Keys.
func (s *Store) Close() error {
	if err := s.client.Close(); err != nil && !errors.Is(err, redis.ErrClosed) {
		return fmt.Errorf("close Redis: %w", err)
	}
	return nil
}

// Classify implements keystore.Elsewhere. What Redis refuses for its own state (memory, loading, a failover, rights) passes when that does.
func (s *Store) Classify(err error) keystore.Fault {
	var (
		said redis.Error
		wire net.Error
	)
	switch {
	case err == nil || errors.Is(err, context.Canceled):
		return keystore.FaultOther
	case errors.As(err, &said) && !errors.Is(err, redis.Nil):
		if text := said.Error(); strings.HasPrefix(text, "ERR ") && !strings.Contains(text, "max number of clients") || strings.HasPrefix(text, "WRONGTYPE") {
			return keystore.FaultOther
		}
		return keystore.FaultUnavailable
	case errors.As(err, &wire), errors.Is(err, context.DeadlineExceeded), errors.Is(err, redis.ErrClosed):
		return keystore.FaultUnavailable
	case errors.Is(err, keystore.ErrLeaseLost), errors.Is(err, keystore.ErrResultTooLarge):
		return keystore.FaultOther
	}
	return keystore.FaultUnavailable // of the connection: EOF, a pool without one
}

// Capabilities implements keystore.Elsewhere: what the server's settings promise, as they were when the store was opened.
func (s *Store) Capabilities() keystore.Capabilities { return s.caps }

// inspectTimeout bounds the look at the server's settings.
const inspectTimeout = 5 * time.Second
