package redisstore

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/middleware/keystore"
)

// name is the Redis key of an ID. Its hash tag spreads keys over the slots of a cluster whatever braces they have; the length
// of the scope keeps scope and key apart.
func (s *Store) name(id keystore.ID) string {
	h := fnv.New32a()
	h.Write([]byte(id.Scope))
	h.Write([]byte{0})
	h.Write([]byte(id.Key))
	return fmt.Sprintf("%s{%08x}:%d:%s:%s", s.cfg.Prefix, h.Sum32(), len(id.Scope), id.Scope, id.Key)
}

func (s *Store) run(ctx context.Context, script *redis.Script, id keystore.ID, args ...any) *redis.Cmd {
	return script.Run(ctx, s.client, []string{s.name(id)}, args...)
}

// Acquire implements keystore.Leasing. Each claim is a step of its own.
func (s *Store) Acquire(ctx context.Context, owner string, claims []keystore.Claim, lease time.Duration) ([]keystore.Verdict, error) {
	verdicts := make([]keystore.Verdict, len(claims))
	for i, c := range claims {
		v, err := s.acquire(ctx, owner, c, lease)
		if err != nil {
			return nil, fmt.Errorf("acquire a key: %w", err)
		}
		verdicts[i] = v
	}
	return verdicts, nil
}

// acquire asks again where the lease that was in the way has ended before it could be looked at.
func (s *Store) acquire(ctx context.Context, owner string, c keystore.Claim, lease time.Duration) (keystore.Verdict, error) {
	for {
		v, err := s.attempt(ctx, owner, c, lease)
		if err != nil || v.Outcome != keystore.Busy || v.Record.State == keystore.InProgress {
			return v, err
		}
	}
}

// attempt acquires a key, and looks at one that it does not get.
func (s *Store) attempt(ctx context.Context, owner string, c keystore.Claim, lease time.Duration) (keystore.Verdict, error) {
	answer, err := s.run(ctx, s.scripts.acquire, c.ID, c.Fingerprint, c.Epoch, owner, rand.Text(), lease.Microseconds()).Result()
	if err != nil {
		return keystore.Verdict{}, err
	}
	v := keystore.Verdict{Record: keystore.Record{ID: c.ID}}
	switch a := answer.(type) {
	case string:
		v.Outcome = keystore.Outcome(a)
	case []any:
		if len(a) == 2 {
			outcome, _ := a[0].(string)
			v.Outcome = keystore.Outcome(outcome)
			v.Token, _ = a[1].(string)
		}
	}
	if v.Outcome == keystore.Fresh {
		return v, nil
	}
	// What the key looks like is for the caller's decision and for people; it may have changed since.
	records, err := s.Peek(ctx, []keystore.ID{c.ID})
	if err != nil {
		return keystore.Verdict{}, err
	}
	v.Record = records[0]
	return v, nil
}

// Renew implements keystore.Leasing.
func (s *Store) Renew(ctx context.Context, id keystore.ID, token string, lease time.Duration) error {
	return guarded("renew a lease", s.run(ctx, s.scripts.renew, id, token, lease.Microseconds()))
}

// Complete implements keystore.Leasing. Each completion is a step of its own. Only completed keys are kept here: any other state ends the
// lease and leaves no key behind.
func (s *Store) Complete(ctx context.Context, completions []keystore.Completion) error {
	for _, c := range completions {
		if c.State != keystore.Completed {
			if err := guarded("end a lease", s.run(ctx, s.scripts.release, c.Claim.ID, c.Claim.Token)); err != nil {
				return err
			}
			continue
		}
		if err := checkResult(c); err != nil {
			return err
		}
		answer := s.run(ctx, s.scripts.complete, c.Claim.ID, c.Claim.Token, c.Claim.Epoch, c.Owner, ttl(c), string(c.Result))
		if err := guarded("complete a key", answer); err != nil {
			return err
		}
	}
	return nil
}

// guarded is the error of a step that a token guards.
func guarded(doing string, answer *redis.Cmd) error {
	done, err := answer.Int()
	if err == nil && done == 0 {
		err = keystore.ErrLeaseLost
	}
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return nil
}

// Release implements keystore.Leasing.
func (s *Store) Release(ctx context.Context, id keystore.ID, token string) error {
	err := guarded("release a lease", s.run(ctx, s.scripts.release, id, token))
	if errors.Is(err, keystore.ErrLeaseLost) {
		return nil
	}
	return err
}

// Note implements keystore.Elsewhere.
func (s *Store) Note(ctx context.Context, completions []keystore.Completion) error {
	for _, c := range completions {
		if err := checkResult(c); err != nil {
			return err
		}
		err := s.run(ctx, s.scripts.note, c.Claim.ID, c.Claim.Fingerprint, c.Claim.Epoch, c.Owner, ttl(c), string(c.Result)).Err()
		if err != nil {
			return fmt.Errorf("note a completed key: %w", err)
		}
	}
	return nil
}

// ttl is the time to live of a completed key in milliseconds.
func ttl(c keystore.Completion) int64 { return max(c.Retention.Milliseconds(), 1) }

func checkResult(c keystore.Completion) error {
	switch {
	case len(c.Result) > keystore.MaxResult:
		return fmt.Errorf("%d bytes: %w", len(c.Result), keystore.ErrResultTooLarge)
	case c.Result != nil && !json.Valid(c.Result):
		return fmt.Errorf("scope %s: the result is not JSON", c.Claim.Scope)
	}
	return nil
}

// Peek implements keystore.Elsewhere.
func (s *Store) Peek(ctx context.Context, ids []keystore.ID) ([]keystore.Record, error) {
	records := make([]keystore.Record, len(ids))
	for i, id := range ids {
		fields, err := s.run(ctx, s.scripts.peek, id).StringSlice()
		if err != nil {
			return nil, fmt.Errorf("read a key: %w", err)
		}
		if records[i], err = recordOf(id, fields); err != nil {
			return nil, fmt.Errorf("read a key: %w", err)
		}
	}
	return records, nil
}

// recordOf reads what peek.lua returns.
func recordOf(id keystore.ID, fields []string) (keystore.Record, error) {
	r := keystore.Record{ID: id}
	if len(fields) != 11 {
		return r, fmt.Errorf("%d fields, want 11", len(fields))
	}
	var numbers [6]int64
	for i, field := range []int{3, 4, 5, 8, 9, 10} {
		if fields[field] == "" {
			continue
		}
		n, err := strconv.ParseInt(fields[field], 10, 64)
		if err != nil {
			return r, err
		}
		numbers[i] = n
	}
	lease, takeovers, first, processed, now, left := numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5]
	r.State, r.Fingerprint, r.Owner, r.Epoch = keystore.State(fields[0]), fields[1], fields[2], fields[6]
	if fields[7] != "" {
		r.Result = json.RawMessage(fields[7])
	}
	r.Takeovers = int(takeovers)
	switch r.State {
	case keystore.InProgress:
		r.FirstAt = time.UnixMicro(first)
		r.ProcessedAt, r.LeaseLeft = r.FirstAt, time.Duration(lease-now)*time.Microsecond
	case keystore.Completed:
		r.ProcessedAt, r.ExpiresAt = time.UnixMicro(processed), time.UnixMicro(now).Add(time.Duration(left)*time.Millisecond)
	}
	return r, nil
}
