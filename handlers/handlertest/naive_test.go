//go:build !race

package handlertest_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/handlers/handlertest"
	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/faultpoint"
	"github.com/oncemill/oncemill/middleware/idempotency"
	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/outbox"
	"github.com/oncemill/oncemill/middleware/parking"
)

// mistake is what a naive engine does wrong; none is a right one, as short as it can be.
type mistake string

const (
	none          mistake = "no mistake"
	claimBefore   mistake = "claim before the work, in a transaction of its own"
	markBefore    mistake = "mark as done before the work"
	lookUp        mistake = "look up, then insert"
	ackBefore     mistake = "ack before the commit"
	setIfAbsent   mistake = "Redis set-if-absent as done"
	retryInTx     mistake = "retry inside one transaction"
	bucketedKey   mistake = "bucket of the key by its sending time"
	noFencing     mistake = "no fencing"
	workersClock  mistake = "lease judged by the worker's clock"
	outboxForgets mistake = "outbox read past the last id that was seen"
)

var errBusy = errors.New("somebody else has the key")

// naive is an engine as one writes it in an afternoon.
type naive struct {
	handlertest.Parts
	wrong    mistake
	redis    *redis.Client
	provider string // a folder, for external handlers
}

func (n *naive) Stop()                      {}
func (n *naive) Wait(context.Context) error { return nil }
func (n *naive) RunParked(context.Context, parking.Leased) error {
	return errors.New("nothing is ever parked")
}

func (n *naive) Process(msg *message.Message) error {
	ctx, cancel := context.WithTimeout(msg.Context(), time.Second)
	defer cancel()
	if n.wrong == ackBefore {
		msg.Ack()
	}
	if err := n.At(ctx, faultpoint.Received); err != nil {
		return err
	}
	key := msg.Metadata.Get(envelope.KeyHeader)
	if n.wrong == bucketedKey {
		key += n.Now().Truncate(time.Hour).String()
	}
	var err error
	if n.Binding.External != nil {
		err = n.external(ctx, key, msg)
	} else {
		err = n.transactional(ctx, key, msg)
	}
	if err == nil {
		err = n.At(ctx, faultpoint.BeforeAck)
	}
	return err
}

const insertDone = `INSERT OR IGNORE INTO naive_keys (key, state) VALUES (?, 'done')`

func (n *naive) transactional(ctx context.Context, key string, msg *message.Message) error {
	if err := n.At(ctx, faultpoint.BeforeClaim); err != nil {
		return err
	}
	goesOn, err := n.before(ctx, key)
	if err != nil || !goesOn {
		return err
	}
	tx, err := n.Store.DB().BeginTxx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	switch n.wrong {
	case claimBefore, markBefore, setIfAbsent, lookUp: // they did something before
	default:
		if fresh, err := changed(tx.ExecContext(ctx, insertDone, key)); err != nil || !fresh {
			return err
		}
	}
	if err := n.At(ctx, faultpoint.AfterClaim); err != nil {
		return err
	}
	out, err := n.handle(ctx, tx, key, msg)
	if err != nil && n.wrong == retryInTx {
		out, err = n.handle(ctx, tx, key, msg)
	}
	if err != nil {
		return err
	}
	switch n.wrong {
	case claimBefore:
		_, err = tx.ExecContext(ctx, `UPDATE naive_keys SET state = 'done' WHERE key = ?`, key)
	case lookUp:
		_, err = tx.ExecContext(ctx, insertDone, key)
	}
	if err != nil {
		return err
	}
	return n.commit(ctx, tx, out)
}

// before does what wrong engines do before their transaction, and reports whether the message is to run.
func (n *naive) before(ctx context.Context, key string) (bool, error) {
	db := n.Store.DB()
	switch n.wrong {
	case claimBefore:
		fresh, err := changed(db.ExecContext(ctx, `INSERT OR IGNORE INTO naive_keys (key, state) VALUES (?, 'claimed')`, key))
		if err != nil || fresh {
			return fresh, err
		}
		var state string
		if err := db.GetContext(ctx, &state, `SELECT state FROM naive_keys WHERE key = ?`, key); err != nil || state == "done" {
			return false, err
		}
		return false, errBusy
	case markBefore:
		return changed(db.ExecContext(ctx, insertDone, key))
	case lookUp:
		var done int
		err := db.GetContext(ctx, &done, `SELECT count(*) FROM naive_keys WHERE key = ?`, key)
		return done == 0, err
	case setIfAbsent:
		var file string // each trial has a database of its own, and Redis is one for all
		if err := db.GetContext(ctx, &file, `SELECT file FROM pragma_database_list WHERE name = 'main'`); err != nil {
			return false, err
		}
		err := n.redis.SetArgs(ctx, file+key, "done", redis.SetArgs{Mode: "NX", TTL: time.Hour}).Err()
		if errors.Is(err, redis.Nil) {
			return false, nil
		}
		return true, err
	}
	return true, nil
}

func (n *naive) handle(ctx context.Context, tx *sqlx.Tx, key string, msg *message.Message) ([]outbox.Record, error) {
	facade := &naiveTx{Tx: tx, at: n.At, key: key, scope: n.Scope}
	_, err := n.Binding.Handler(ctx, facade, msg.Copy())
	return facade.out, err
}

func (n *naive) commit(ctx context.Context, tx *sqlx.Tx, out []outbox.Record) error {
	if err := n.Store.Publish(ctx, tx, out); err != nil {
		return err
	}
	if err := n.At(ctx, faultpoint.BeforeCommit); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	return n.At(ctx, faultpoint.Committed)
}

// lease is a row of naive_keys.
type lease struct {
	State string
	Owner string
	Until int64
}

// external calls under a lease. Whoever takes one over calls again: the provider deduplicates.
func (n *naive) external(ctx context.Context, key string, msg *message.Message) error {
	owner := n.Replica + envelope.NewUUID()
	if err := n.At(ctx, faultpoint.BeforeClaim); err != nil {
		return err
	}
	goesOn, err := n.acquire(ctx, key, owner)
	if err != nil || !goesOn {
		return err
	}
	if err := n.At(ctx, faultpoint.LeaseAcquired); err != nil {
		return err
	}
	result, err := n.call(ctx, key, msg)
	if err == nil {
		err = n.At(ctx, faultpoint.Called)
	}
	if err != nil {
		return err
	}
	return n.record(ctx, key, owner, msg, result)
}

// call notes when the provider is called while it works on the same key already. The lock ends with the process.
func (n *naive) call(ctx context.Context, key string, msg *message.Message) (any, error) {
	file, err := os.OpenFile(filepath.Join(n.provider, "calling"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = os.WriteFile(filepath.Join(n.provider, overlaps), []byte("two calls for one key at the same time"), 0o600)
	}
	if err != nil {
		return nil, err
	}
	result, err := n.Binding.External.Call(ctx, msg.Copy(), handlers.NewKey(n.Scope, key))
	if err == nil {
		err = n.At(ctx, faultpoint.Answering)
	}
	return result, err
}

const overlaps = "overlaps"

// acquire takes the key's lease, and reports whether the message is to be called.
func (n *naive) acquire(ctx context.Context, key, owner string) (bool, error) {
	now := n.Now()
	if n.wrong == workersClock && n.Replica == "two" {
		now = now.Add(time.Hour)
	}
	tx, err := n.Store.DB().BeginTxx(ctx, nil)
	if err != nil {
		return false, err
	}
	defer tx.Rollback()
	until := now.Add(30 * time.Second).Unix()
	fresh, err := changed(tx.ExecContext(ctx, `INSERT OR IGNORE INTO naive_keys (key, state, owner, until) VALUES (?, 'calling', ?, ?)`, key, owner, until))
	if err != nil {
		return false, err
	}
	if fresh {
		return true, tx.Commit()
	}
	var l lease
	if err := tx.GetContext(ctx, &l, `SELECT state, owner, until FROM naive_keys WHERE key = ?`, key); err != nil {
		return false, err
	}
	switch {
	case l.State == "done":
		return false, nil
	case l.Until > now.Unix():
		return false, errBusy
	}
	if _, err := tx.ExecContext(ctx, `UPDATE naive_keys SET owner = ?, until = ? WHERE key = ?`, owner, until, key); err != nil {
		return false, err
	}
	return true, tx.Commit()
}

func (n *naive) record(ctx context.Context, key, owner string, msg *message.Message, result any) error {
	tx, err := n.Store.DB().BeginTxx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	mine, err := changed(tx.ExecContext(ctx, `UPDATE naive_keys SET state = 'done' WHERE key = ? AND owner = ? AND state = 'calling'`, key, owner))
	if err != nil {
		return err
	}
	if !mine && n.wrong != noFencing {
		return keystore.ErrLeaseLost
	}
	data, err := json.Marshal(result)
	if err != nil {
		return err
	}
	facade := &naiveTx{Tx: tx, at: n.At, key: key, scope: n.Scope}
	if err := n.Binding.External.Record(ctx, facade, msg.Copy(), data); err != nil {
		return err
	}
	return n.commit(ctx, tx, facade.out)
}

// changed reports whether a statement changed a row.
func changed(res interface{ RowsAffected() (int64, error) }, err error) (bool, error) {
	if err != nil {
		return false, err
	}
	rows, err := res.RowsAffected()
	return rows > 0, err
}

// naiveTx is a transaction as a handler sees it.
type naiveTx struct {
	*sqlx.Tx
	at         faultpoint.Hook
	key, scope string
	out        []outbox.Record
}

func (t *naiveTx) Key() string                                  { return t.key }
func (t *naiveTx) Scope() string                                { return t.scope }
func (t *naiveTx) AfterCommit(func(context.Context))            {}
func (t *naiveTx) Defer(func(rows int64) error, string, ...any) { panic("not used") }
func (t *naiveTx) ExecContext(ctx context.Context, q string, args ...any) (res sql.Result, err error) {
	if err := t.at(ctx, faultpoint.BeforeStatement); err != nil {
		return nil, err
	}
	if res, err = t.Tx.ExecContext(ctx, q, args...); err == nil {
		err = t.at(ctx, faultpoint.AfterStatement)
	}
	return res, err
}

func (t *naiveTx) Publish(_ context.Context, topic string, payloads ...any) error {
	for _, p := range payloads {
		data, err := json.Marshal(p)
		if err != nil {
			return err
		}
		identity := envelope.DeriveUUID(t.scope, t.key, len(t.out))
		msg := message.NewMessage(identity, data)
		msg.Metadata.Set(envelope.KeyHeader, identity)
		record, err := idempotency.NewRecord(topic, msg, 1<<20, t.scope, t.key)
		if err != nil {
			return fmt.Errorf("publish: %w", err)
		}
		t.out = append(t.out, record)
	}
	return nil
}
