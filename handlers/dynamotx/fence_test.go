package dynamotx_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/handlers/dynamotx"
	"github.com/oncemill/oncemill/handlers/handlertest"
	"github.com/oncemill/oncemill/handlers/internal/dynamotest"
	"github.com/oncemill/oncemill/internal/testenv"
)

func TestASecondCallGetsTheFirstOnesOutcome(t *testing.T) {
	b := newBell(t)
	e := b.handler(b.once()).External()
	first, err := call(t, e)
	require.NoError(t, err)
	second, err := call(t, e)
	require.NoError(t, err)
	require.Equal(t, "1", first)
	require.Equal(t, first, second)
	require.Equal(t, 1, b.rung())
}

func TestFailureAtEachStep(t *testing.T) {
	b := newBell(t)
	k := b.kit(b.once())
	k.FailEverywhere("bells.ring", key, []byte("{}"), func(k *handlertest.Kit) {
		rung := b.rung()
		k.WantPublished("bells.rung", 1)
		b.Clear(b.cfg.Prefix) // the next step has a database of its own, but these tables
		require.Equal(k.T(), 1, rung)
		k.WantDead()
		k.WantQuiet()
	})
}

// A replica loses its lease while its transaction is on the way, another runs the message, and then the first one's arrives.
func TestAZombiesTransactionIsFenced(t *testing.T) {
	b := newBell(t)
	plan := b.once()
	zombie, owner := b.handler(plan).External(), b.handler(plan).External()
	arrived, arrive := make(chan struct{}), make(chan struct{})
	b.Before(dynamotest.Transact, func(n int) {
		if n == 1 {
			close(arrived)
			<-arrive
		}
	})
	var late string
	var lateErr error
	var work sync.WaitGroup
	work.Go(func() { late, lateErr = call(t, zombie) })
	<-arrived
	first, err := call(t, owner)
	require.NoError(t, err)
	close(arrive)
	work.Wait()
	require.NoError(t, lateErr)
	require.Equal(t, "2", first)
	require.Equal(t, first, late, "the result is that of the transaction which committed")
	require.Equal(t, 1, b.rung())
}

func TestRivals(t *testing.T) {
	b := newBell(t)
	k := b.kit(b.once())
	k.DeliverToRivals("bells.ring", key, []byte("{}"))
	require.Equal(t, 1, b.rung())
	k.WantPublished("bells.rung", 1)
}

func TestLostAnswers(t *testing.T) {
	for _, lost := range []int{1, 2, 3, 8} { // three sendings make a call
		t.Run(strconv.Itoa(lost), func(t *testing.T) {
			b := newBell(t)
			k := b.kit(b.once())
			b.Lose(dynamotest.Transact, lost)
			k.Deliver("bells.ring", key, []byte("{}"))
			for range 5 {
				k.Advance(2 * time.Hour)
			}
			k.WantQuiet()
			k.WantDead()
			require.Equal(t, 1, b.rung())
			k.WantPublished("bells.rung", 1)
			require.Equal(t, handlertest.Duplicate, k.Deliver("bells.ring", key, []byte("{}")))
		})
	}
}

func TestWhatNobodyAnsweredIsUnknown(t *testing.T) {
	b := newBell(t)
	e := b.handler(b.once()).External()
	b.Lose(dynamotest.Transact, 3)
	_, err := call(t, e)
	var unknown *handlers.UnknownError
	require.ErrorAs(t, err, &unknown)
	require.Equal(t, handlers.UnknownRetry, e.Unknown)
	require.Equal(t, b.cfg.Retention, e.Window)

	result, err := call(t, e)
	require.NoError(t, err)
	require.Equal(t, "1", result)
	require.Equal(t, 1, b.rung())
}

// The lease is lost while the transaction is on the way.
func TestACallThatIsCutOffIsUnknown(t *testing.T) {
	b := newBell(t)
	e := b.handler(b.once()).External()
	ctx, cut := context.WithCancel(t.Context())
	b.Before(dynamotest.Transact, func(int) { cut() })
	_, err := e.Call(ctx, message.NewMessage("m", []byte("{}")), handlers.NewKey(handlertest.Service+"/bells", key))
	require.ErrorIs(t, err, context.Canceled)
	var unknown *handlers.UnknownError
	require.ErrorAs(t, err, &unknown)
}

// A server that cannot be reached has done nothing.
func TestAServerThatIsAway(t *testing.T) {
	b := newBell(t)
	proxy := testenv.Proxy(t, strings.TrimPrefix(b.cfg.Endpoint, "http://"))
	b.cfg.Endpoint = "http://" + proxy.Addr
	b.db = dynamotx.New(b.cfg, bells)
	e := b.handler(b.once()).External()
	_, err := call(t, e)
	require.NoError(t, err)
	b.Clear(b.db.Name("keys"))
	proxy.Cut()
	_, err = call(t, e) // some connection may have been open when it was sent
	require.Error(t, err)
	_, err = call(t, e)
	require.Error(t, err)
	var unknown *handlers.UnknownError
	var permanent *handlers.PermanentError
	require.False(t, errors.As(err, &permanent), "%v", err)
	require.False(t, errors.As(err, &unknown), "%v", err)
	proxy.Restore()
	_, err = call(t, e)
	require.NoError(t, err)
	require.Equal(t, 2, b.rung())
}

// An answer that comes after a lost one speaks for its own sending only: what passes leaves the outcome open, what lasts is believed after a look at the
// key, which is there.
func TestARefusalAfterALostAnswer(t *testing.T) {
	for _, code := range []string{"ThrottlingException", "ValidationException"} {
		t.Run(code, func(t *testing.T) {
			b := newBell(t)
			e := b.handler(b.once()).External()
			b.Lose(dynamotest.Transact, 1)
			b.Before(dynamotest.Transact, func(n int) {
				if n == 2 {
					b.Refuse(dynamotest.Transact, dynamotest.Answer{Code: code})
				}
			})
			result, err := call(t, e)
			if code == "ValidationException" {
				require.NoError(t, err)
				require.Equal(t, "1", result)
				return
			}
			require.ErrorAs(t, err, new(*handlers.UnknownError))
		})
	}
}

// A plan that runs again after its commit may write what cannot be written: the message is done all the same.
func TestALastingRefusalIsBelievedOnlyWithoutTheKey(t *testing.T) {
	b := newBell(t)
	e := b.handler(b.once()).External()
	_, err := call(t, e)
	require.NoError(t, err)
	b.Refuse(dynamotest.Transact, dynamotest.Answer{Code: "ValidationException"})
	result, err := call(t, e)
	require.NoError(t, err)
	require.Equal(t, "1", result)
	require.Equal(t, 2, b.Count(dynamotest.Transact))
}

// The service's refusals, one each, and what follows: another sending or another plan in the same call, or an error that says whether the
// message may be tried again.
func TestRefusals(t *testing.T) {
	cancelled := func(reasons ...string) dynamotest.Answer {
		return dynamotest.Answer{Code: "TransactionCanceledException", Reasons: reasons}
	}
	const again, anew, later, never = "sent again", "planned anew", "later", "never"
	for name, c := range map[string]struct {
		answer dynamotest.Answer
		want   string
	}{
		"throttling":               {dynamotest.Answer{Code: "ThrottlingException"}, later},
		"throughput":               {dynamotest.Answer{Code: "ProvisionedThroughputExceededException"}, later},
		"no rights":                {dynamotest.Answer{Code: "AccessDeniedException"}, later},
		"invalid":                  {dynamotest.Answer{Code: "ValidationException"}, never},
		"conflict":                 {cancelled("None", "TransactionConflict"), anew},
		"condition":                {cancelled("None", "ConditionalCheckFailed"), anew},
		"throttled conflict":       {cancelled("ThrottlingError", "TransactionConflict"), later},
		"throughput of a table":    {cancelled("None", "ProvisionedThroughputExceeded"), later},
		"an invalid write":         {cancelled("TransactionConflict", "ValidationError"), never},
		"a full collection":        {cancelled("None", "ItemCollectionSizeLimitExceeded"), never},
		"the service's failure":    {dynamotest.Answer{Code: "InternalServerError", Status: 500}, again},
		"the service is not there": {dynamotest.Answer{Code: "ServiceUnavailable", Status: 503}, again},
		"still running":            {dynamotest.Answer{Code: "TransactionInProgressException"}, again},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBell(t)
			e := b.handler(b.once()).External()
			b.Refuse(dynamotest.Transact, c.answer)
			result, err := call(t, e)
			switch c.want {
			case again, anew:
				require.NoError(t, err)
				require.Equal(t, map[string]string{again: "1", anew: "2"}[c.want], result, "the number of the plan")
				require.Equal(t, 2, b.Count(dynamotest.Transact))
			default:
				require.Error(t, err)
				require.NotErrorAs(t, err, new(*handlers.UnknownError))
				require.Equal(t, c.want == never, errors.As(err, new(*handlers.PermanentError)), "%v", err)
				_, err = call(t, e)
				require.NoError(t, err)
			}
			require.Equal(t, 1, b.rung())
		})
	}
}

// expiring changes when the key ends.
func (b *bell) expiring(at time.Time) {
	b.t.Helper()
	items := b.Items(b.db.Name("keys"))
	require.Len(b.t, items, 1)
	items[0]["expires_at"] = dynamotx.Int(at.Unix())
	b.Put(b.db.Name("keys"), items[0])
}

// The service removes expired items days later: until then a condition makes them absent.
func TestF050ExpiredKeysAreStillThere(t *testing.T) {
	b := newBell(t)
	e := b.handler(b.once()).External()
	_, err := call(t, e)
	require.NoError(t, err)
	item := b.Items(b.db.Name("keys"))[0]
	expires, err := dynamotx.Item(item).Int("expires_at")
	require.NoError(t, err)
	require.WithinDuration(t, time.Now().Add(b.cfg.Retention+time.Hour), time.Unix(expires, 0), 5*time.Minute)

	b.expiring(time.Now().Add(time.Hour))
	result, err := call(t, e)
	require.NoError(t, err)
	require.Equal(t, "1", result)
	require.Equal(t, 1, b.rung())

	b.expiring(time.Now().Add(-2 * time.Hour))
	_, known, err := e.Probe(t.Context(), nil, handlers.NewKey(handlertest.Service+"/bells", key))
	require.NoError(t, err)
	require.False(t, known)
	result, err = call(t, e)
	require.NoError(t, err)
	require.NotEqual(t, "1", result)
	require.Equal(t, 2, b.rung())
}

func TestProbe(t *testing.T) {
	b := newBell(t)
	e := b.handler(b.once()).External()
	identity := handlers.NewKey(handlertest.Service+"/bells", key)
	_, known, err := e.Probe(t.Context(), nil, identity)
	require.NoError(t, err)
	require.False(t, known)
	_, err = call(t, e)
	require.NoError(t, err)
	result, known, err := e.Probe(t.Context(), nil, identity)
	require.NoError(t, err)
	require.True(t, known)
	require.Equal(t, "1", fmt.Sprintf("%s", result))
}

// A plan that meets its own effect takes it for another's; the key tells.
func TestARefusalIsBelievedOnlyWithoutTheKey(t *testing.T) {
	b := newBell(t)
	e := b.handler(func(ctx context.Context, read dynamotx.Reader, _ *message.Message, _ handlers.Key) (dynamotx.Writes, error) {
		found, err := read.Get(ctx, b.db.Name("bells"), dynamotx.Item{"bell": dynamotx.String("b")})
		if err != nil {
			return dynamotx.Writes{}, err
		}
		if found != nil {
			return dynamotx.Writes{}, handlers.Permanent("rung", "somebody rang it")
		}
		return dynamotx.Writes{Items: []types.TransactWriteItem{b.ring("attribute_not_exists(bell)")}, Result: "rang"}, nil
	}).External()
	for range 2 {
		result, err := call(t, e)
		require.NoError(t, err)
		require.JSONEq(t, `"rang"`, result)
	}
	b.Clear(b.db.Name("keys"))
	_, err := call(t, e)
	var permanent *handlers.PermanentError
	require.ErrorAs(t, err, &permanent)
	require.Equal(t, 1, b.rung())
}
