// Package dynamostore keeps keys in Amazon DynamoDB: leases of external handlers, and hints of completed keys. The effects, and the truth about
// their keys, are in the database.
//
// # Guarantees
//
// A key is one item. Every step (acquire, renew, complete, release, note) is a conditional write of it, so it is atomic; every read is consistent. Who
// loses a claim learns from the same answer who has the key. A key in progress has an owner, a fencing token and the end of its lease; a step of a
// holder whose token is not the key's any more changes nothing. Nothing but a completion makes a key completed: a bare claim never counts as
// done. A step whose answer was lost may be repeated: the same owner gets its own token again, a completion recognises its own, and a released key stays so.
//
// A key in progress has no time to live. A completed key has the binding's retention, in the attribute "expires_at", a number of seconds. The service
// removes such items up to days later: from that second on the key counts as absent, in reads and in the condition of each claim.
//
// DynamoDB tells conditions no time. This process takes it from the Date of the service's answers, never from a clock that somebody
// sets, and knows it to a second at first, closer with each answer. Where that leaves a doubt it goes to the holder: a lease ends by the latest time that it
// may have been when it was asked for, and is over for others, a second later still, by the earliest time that it may be. So a lease is taken over up to
// three seconds after its end, and never before. A lease of less than 100 ms is over at once: that is how one is given back.
//
// The table is checked before the first step: its key, and that its time to live is on, and on the right attribute. A wrong one fails the start and is never
// written to. Config.Create makes a missing one.
//
// What DynamoDB loses, it loses without a word: a table that somebody deletes, or restores from a backup. A completed key that is lost costs a transaction. A
// lease that is lost, while its call is under way, is no lease: another copy of the message may be called for at the same time, under the same downstream
// key, and a process that died during its call leaves nobody who knows of it. The replicas of a global table take writes without asking each
// other, and the last writer wins: there two regions can have the same lease, and a hint can be overwritten. Capabilities says so, and the start refuses external
// handlers that rely on the lease, unless allow_loss is set. A global table of strong consistency has no such weakness.
//
// A crash of this process at any step leaves a lease that ends by itself, or a completed key.
//
// The process may call DescribeTable, DescribeTimeToLive, GetItem, PutItem, UpdateItem and DeleteItem, and with Config.Create CreateTable and
// UpdateTimeToLive.
package dynamostore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/oncemill/oncemill/adapters/store"
	"github.com/oncemill/oncemill/internal/awsclock"
	"github.com/oncemill/oncemill/internal/awsconf"
	"github.com/oncemill/oncemill/middleware/keystore"
)

const (
	// answerWithin bounds one answer.
	answerWithin = 3 * time.Second
	// attempts are of a step without an answer. Every step may be repeated: it knows its own token. Only where
	// a completion leaves no key does the repetition say that the lease is lost.
	attempts = 3
	// retryPause is the longest between them.
	retryPause = 500 * time.Millisecond
	// checkWithin bounds the look at the table when the store is opened.
	checkWithin = 90 * time.Second
)

// Factory makes the store of keys named "dynamodb".
func Factory() store.KeysFactory {
	return store.KeysFactory{
		Name: Name,
		Open: func(ctx context.Context, decode func(any) error, opts store.Options) (store.Keys, error) {
			c, err := load(decode)
			if err != nil {
				return nil, err
			}
			return Open(ctx, c, opts)
		},
		Check: func(decode func(any) error) error {
			_, err := load(decode)
			return err
		},
	}
}

// Store is one table. Safe for concurrent use.
type Store struct {
	cfg       Config
	region    string
	client    *dynamodb.Client
	transport *http.Transport
	clock     *awsclock.Clock

	checking chan struct{} // holds one who looks at the table
	checked  atomic.Bool
	mu       sync.Mutex
	caps     keystore.Capabilities
}

var _ store.Keys = (*Store)(nil)

// Open makes the client and looks at the table. A service that does not answer, or refuses these credentials, is a caveat and not an error: the
// table is looked at before the first step then. A table that is not as it must be is a *TableError.
func Open(ctx context.Context, c Config, opts store.Options) (*Store, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", Name, err)
	}
	log := opts.Logger
	if log == nil {
		log = slog.Default()
	}
	settings, transport, err := awsconf.Load(ctx, awsconf.Settings{
		Region: c.Region, Profile: c.Profile, Section: "databases." + Name, Connections: max(opts.Connections, 16),
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", Name, err)
	}
	s := &Store{cfg: c, region: settings.Region, transport: transport, clock: awsclock.New(), checking: make(chan struct{}, 1)}
	s.client = dynamodb.NewFromConfig(settings, func(o *dynamodb.Options) {
		o.HTTPClient = awsclock.Client{HTTP: &http.Client{Transport: transport, Timeout: answerWithin}, Clock: s.clock}
		o.Retryer = retry.NewStandard(func(r *retry.StandardOptions) { r.MaxAttempts, r.MaxBackoff = attempts, retryPause })
		if c.Endpoint != "" {
			o.BaseEndpoint = aws.String(c.Endpoint)
		}
	})
	s.caps.Caveats = []string{"DynamoDB did not answer at the start, so it is not known whether its table has replicas: duplicates cost a transaction until it does"}
	bounded, cancel := context.WithTimeout(ctx, checkWithin)
	defer cancel()
	if err := s.prepare(bounded); err != nil {
		if s.Classify(err) != keystore.FaultUnavailable || errors.As(err, new(*TableError)) {
			return nil, errors.Join(fmt.Errorf("%s: %w", Name, err), s.Close())
		}
		log.WarnContext(ctx, "the table of keys could not be looked at", "err", err)
	}
	if forgets := s.Capabilities().Forgets; forgets != "" {
		log.WarnContext(ctx, "dynamodb can lose keys in ordinary operation", "because", forgets)
	}
	return s, nil
}

// Ping implements store.Keys.
func (s *Store) Ping(ctx context.Context) error {
	err := s.prepare(ctx)
	if err == nil {
		_, err = s.read(ctx, keystore.ID{})
	}
	if err != nil {
		return fmt.Errorf("ping DynamoDB: %w", err)
	}
	return nil
}

// Close implements store.Keys.
func (s *Store) Close() error {
	s.transport.CloseIdleConnections()
	return nil
}

// Classify implements keystore.Elsewhere. What DynamoDB refuses for its own state, or for the caller's rights, passes when that does.
func (s *Store) Classify(err error) keystore.Fault {
	switch {
	case err == nil, errors.Is(err, context.Canceled), errors.Is(err, keystore.ErrLeaseLost), errors.Is(err, keystore.ErrResultTooLarge), errors.Is(err, errResult):
		return keystore.FaultOther
	case errors.Is(err, errChanges):
		return keystore.FaultContention
	case errors.As(err, new(*TableError)), errors.As(err, new(*types.ResourceNotFoundException)):
		return keystore.FaultUnavailable
	}
	switch awsconf.Code(err) {
	case "TransactionConflictException", "ReplicatedWriteConflictException":
		return keystore.FaultContention
	case "ProvisionedThroughputExceededException", "RequestLimitExceeded", "LimitExceededException", "ResourceInUseException", "UnrecognizedClientException":
		return keystore.FaultUnavailable
	}
	if awsconf.Passing(err) {
		return keystore.FaultUnavailable
	}
	return keystore.FaultOther
}

// Capabilities implements keystore.Elsewhere: what the table promised when it was looked at.
func (s *Store) Capabilities() keystore.Capabilities {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.caps
}
