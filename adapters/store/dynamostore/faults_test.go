package dynamostore_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/store/dynamostore"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/keystore"
)

// fronted is a table of the test's own behind a front.
func fronted(t *testing.T) (dynamostore.Config, *front) {
	t.Helper()
	c := config(t)
	f := newFront(t, c.Endpoint)
	c.Endpoint = f.URL
	return c, f
}

// throughProxy is the endpoint behind a proxy.
func throughProxy(t *testing.T, endpoint string) (string, *testenv.TCPProxy) {
	t.Helper()
	u, err := url.Parse(endpoint)
	require.NoError(t, err)
	proxy := testenv.Proxy(t, u.Host)
	u.Host = proxy.Addr
	return u.String(), proxy
}

// front stands before the service and changes what comes from it.
type front struct {
	*httptest.Server
	mu sync.Mutex
	// ahead is how far the service's clock is before this machine's.
	ahead time.Duration
	// noDate takes the time out of its answers.
	noDate bool
	// lost is how many answers to each operation do not arrive.
	lost map[string]int
	// refuse answers for the service: status and error by operation.
	refuse map[string]refusal
	// before runs once before an operation reaches the service.
	before map[string]func()
	// table is added to what it says of a table.
	table map[string]any
	// requests counts what arrived.
	requests map[string]int
}

type refusal struct {
	status int
	kind   string
}

func newFront(t *testing.T, endpoint string) *front {
	t.Helper()
	f := &front{lost: map[string]int{}, refuse: map[string]refusal{}, before: map[string]func(){}, requests: map[string]int{}}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { f.serve(t, endpoint, w, r) }))
	t.Cleanup(f.Close)
	return f
}

func (f *front) change(with func(f *front)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	with(f)
}

func (f *front) serve(t *testing.T, endpoint string, w http.ResponseWriter, r *http.Request) {
	_, operation, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	body, _ := io.ReadAll(r.Body)
	f.mu.Lock()
	f.requests[operation]++
	said, refused := f.refuse[operation]
	lost := f.lost[operation] > 0
	if lost {
		f.lost[operation]--
	}
	ahead, noDate, table, before := f.ahead, f.noDate, f.table, f.before[operation]
	delete(f.before, operation)
	f.mu.Unlock()
	if before != nil {
		before()
	}
	date := func() {
		w.Header().Set("Date", time.Now().Add(ahead).UTC().Format(http.TimeFormat))
		if noDate {
			w.Header()["Date"] = nil
		}
	}
	if refused {
		date()
		w.Header().Set("Content-Type", "application/x-amz-json-1.0")
		w.WriteHeader(said.status)
		_, _ = fmt.Fprintf(w, `{"__type":"com.amazonaws.dynamodb.v20120810#%s","message":"refused"}`, said.kind)
		return
	}
	onward, err := http.NewRequestWithContext(r.Context(), r.Method, endpoint+r.URL.Path, bytes.NewReader(body))
	if err != nil {
		t.Error(err)
		return
	}
	onward.Header = r.Header.Clone()
	onward.Header.Del("Accept-Encoding")
	answer, err := http.DefaultClient.Do(onward)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer func() { _ = answer.Body.Close() }()
	content, err := io.ReadAll(answer.Body)
	if err != nil || lost {
		panic(http.ErrAbortHandler) // the connection breaks
	}
	if operation == "DescribeTable" && table != nil {
		content = withTable(t, content, table)
		answer.Header.Del("Content-Length")
		answer.Header.Del("X-Amz-Crc32")
	}
	for name, value := range answer.Header {
		w.Header()[name] = value
	}
	date()
	w.WriteHeader(answer.StatusCode)
	_, _ = w.Write(content)
}

func withTable(t *testing.T, content []byte, more map[string]any) []byte {
	var said map[string]map[string]any
	if err := json.Unmarshal(content, &said); err != nil {
		t.Error(err)
		return content
	}
	maps.Copy(said["Table"], more)
	content, err := json.Marshal(said)
	if err != nil {
		t.Error(err)
	}
	return content
}

func claim(key string) keystore.Claim {
	return keystore.Claim{ID: keystore.ID{Scope: "svc/a", Key: key}, Fingerprint: "json:1:aaaa", Epoch: "e1"}
}

func acquire(t *testing.T, s *dynamostore.Store, owner, key string, lease time.Duration) keystore.Verdict {
	t.Helper()
	verdicts, err := s.Acquire(t.Context(), owner, []keystore.Claim{claim(key)}, lease)
	require.NoError(t, err)
	return verdicts[0]
}

func completion(key, token string) keystore.Completion {
	c := keystore.Completion{Claim: claim(key), State: keystore.Completed, Retention: time.Hour, Result: []byte(`"r"`)}
	c.Claim.Token = token
	return c
}

func item(t *testing.T, c dynamostore.Config, key string) map[string]types.AttributeValue {
	t.Helper()
	out, err := plain(t).GetItem(t.Context(), &dynamodb.GetItemInput{
		TableName: &c.Table, Key: map[string]types.AttributeValue{"id": &types.AttributeValueMemberB{Value: []byte("5:svc/a:" + key)}},
	})
	require.NoError(t, err)
	return out.Item
}

// An answer that is lost changes nothing: the step is repeated, by the SDK or by whoever asked, and knows its own.
func TestLostAnswers(t *testing.T) {
	t.Parallel()
	c, f := fronted(t)
	s := open(t, c)
	lose := func(operation string, times int) { f.change(func(f *front) { f.lost[operation] = times }) }

	lose("PutItem", 1)
	v := acquire(t, s, "one", "a", time.Minute)
	require.Equal(t, keystore.Fresh, v.Outcome)
	require.Zero(t, f.lost["PutItem"], "it was lost, and sent again")
	require.NoError(t, s.Renew(t.Context(), v.Record.ID, v.Token, time.Minute))

	lose("PutItem", 3) // all attempts of the SDK
	_, err := s.Acquire(t.Context(), "two", []keystore.Claim{claim("b")}, time.Minute)
	require.Error(t, err)
	require.Equal(t, keystore.FaultUnavailable, s.Classify(err))
	require.Equal(t, keystore.Busy, acquire(t, s, "three", "b", time.Minute).Outcome)
	v = acquire(t, s, "two", "b", time.Minute)
	require.Equal(t, keystore.Fresh, v.Outcome, "the owner gets its own")
	require.NoError(t, s.Renew(t.Context(), v.Record.ID, v.Token, 0), "which it gives back")

	lose("UpdateItem", 1)
	v = acquire(t, s, "four", "b", time.Minute)
	require.Equal(t, keystore.TakenOver, v.Outcome)
	require.Equal(t, 1, v.Record.Takeovers, "it was taken over once")

	lose("UpdateItem", 1)
	require.NoError(t, s.Complete(t.Context(), []keystore.Completion{completion("b", v.Token)}))
	require.NoError(t, s.Complete(t.Context(), []keystore.Completion{completion("b", v.Token)}), "a completion recognises its own")
	require.Equal(t, keystore.Duplicate, acquire(t, s, "five", "b", time.Minute).Outcome)

	v = acquire(t, s, "one", "c", time.Minute)
	lose("DeleteItem", 1)
	require.NoError(t, s.Release(t.Context(), v.Record.ID, v.Token))
	require.Empty(t, item(t, c, "c"))
}

// A lease that is over is its holder's until somebody has taken it: a renewal that arrives first wins, and so does a completion.
func TestHolderIsFasterThanATakeover(t *testing.T) {
	t.Parallel()
	c := config(t)
	f := newFront(t, c.Endpoint)
	holder := open(t, c)
	c.Endpoint = f.URL
	rival := open(t, c)
	v := acquire(t, holder, "one", "a", time.Millisecond)
	f.change(func(f *front) {
		f.before["UpdateItem"] = func() {
			if err := holder.Renew(t.Context(), v.Record.ID, v.Token, time.Minute); err != nil {
				t.Error(err)
			}
		}
	})
	require.Equal(t, keystore.Busy, acquire(t, rival, "two", "a", time.Minute).Outcome)
	require.NoError(t, holder.Renew(t.Context(), v.Record.ID, v.Token, time.Millisecond), "it is still the holder's")

	f.change(func(f *front) {
		f.before["UpdateItem"] = func() {
			if err := holder.Complete(t.Context(), []keystore.Completion{completion("a", v.Token)}); err != nil {
				t.Error(err)
			}
		}
	})
	require.Equal(t, keystore.Duplicate, acquire(t, rival, "two", "a", time.Minute).Outcome)
}

// Time is the service's, however wrong this machine's is, and a lease that may still be its holder's is nobody else's.
func TestTimeIsTheServices(t *testing.T) {
	t.Parallel()
	c, f := fronted(t)
	f.change(func(f *front) { f.ahead = 1000 * time.Hour })
	began := time.Now().Add(1000 * time.Hour)
	s, other := open(t, c), open(t, c)
	acquire(t, s, "one", "a", 10*time.Minute)
	until := numberOf(t, item(t, c, "a"), "lease_until")
	require.InDelta(t, began.Add(10*time.Minute).UnixMilli(), until, float64(time.Minute.Milliseconds()))
	require.GreaterOrEqual(t, until, began.Truncate(time.Second).Add(10*time.Minute).UnixMilli(), "never shorter than asked for")

	move := func(d time.Duration) { f.change(func(f *front) { f.ahead += d }) }
	require.NoError(t, other.Ping(t.Context()))
	move(9 * time.Minute)
	require.Equal(t, keystore.Busy, acquire(t, other, "two", "a", time.Minute).Outcome)
	move(2 * time.Minute)
	require.Equal(t, keystore.TakenOver, acquire(t, other, "two", "a", time.Minute).Outcome, "the refusal itself tells the time")
}

// A machine that was suspended learns from the answer that it was, and makes up for the lease that it asked for too early.
func TestSuspendedMachineHasItsWholeLease(t *testing.T) {
	t.Parallel()
	c, f := fronted(t)
	s := open(t, c)
	f.change(func(f *front) { f.ahead = time.Hour })
	acquire(t, s, "one", "a", time.Minute)
	whole := func(ahead time.Duration) {
		t.Helper()
		require.GreaterOrEqual(t, numberOf(t, item(t, c, "a"), "lease_until"), time.Now().Add(ahead).UnixMilli())
	}
	whole(time.Hour)
	f.change(func(f *front) { f.ahead = 2 * time.Hour })
	v := acquire(t, s, "one", "a", time.Minute)
	f.change(func(f *front) { f.ahead = 3 * time.Hour })
	require.NoError(t, s.Renew(t.Context(), v.Record.ID, v.Token, time.Minute))
	whole(3 * time.Hour)
}

// Without the time of the service there is no lease.
func TestNoDate(t *testing.T) {
	t.Parallel()
	c, f := fronted(t)
	f.change(func(f *front) { f.noDate = true })
	s := open(t, c)
	_, err := s.Acquire(t.Context(), "one", []keystore.Claim{claim("a")}, time.Minute)
	require.ErrorContains(t, err, "no Date")
	require.Empty(t, item(t, c, "a"))
}

// F050: the service removes expired items days later, if at all. A completed one counts as absent, read and claimed; the lease of one in progress is over, and
// it stays.
func TestF050ExpiredItemsAreStillThere(t *testing.T) {
	t.Parallel()
	c := config(t)
	f := newFront(t, c.Endpoint)
	direct := c
	c.Endpoint = f.URL
	s := open(t, direct)
	v := acquire(t, s, "one", "done", time.Minute)
	require.NoError(t, s.Complete(t.Context(), []keystore.Completion{completion("done", v.Token)}))
	require.NoError(t, s.Note(t.Context(), []keystore.Completion{completion("noted", "")}))
	acquire(t, s, "one", "open", time.Minute)
	require.Equal(t, keystore.Duplicate, acquire(t, s, "two", "done", time.Minute).Outcome)
	expires := numberOf(t, item(t, c, "done"), "expires_at")
	require.InDelta(t, time.Now().Add(time.Hour).Unix(), expires, 60, "a number, in seconds")
	require.NotContains(t, item(t, c, "open"), "expires_at")

	f.change(func(f *front) { f.ahead = 3 * time.Hour })
	late := open(t, c)
	ids := []keystore.ID{claim("done").ID, claim("noted").ID}
	records, err := late.Peek(t.Context(), ids)
	require.NoError(t, err)
	require.Equal(t, []keystore.Record{{ID: ids[0]}, {ID: ids[1]}}, records)
	require.NotEmpty(t, item(t, c, "done"), "it is still there")

	before := f.count("UpdateItem")
	require.Equal(t, keystore.Fresh, acquire(t, late, "two", "done", time.Minute).Outcome)
	require.Equal(t, before, f.count("UpdateItem"), "by the condition, in one step")
	require.NotContains(t, item(t, c, "done"), "expires_at", "nothing removes a key in progress")
	require.NotContains(t, item(t, c, "done"), "result")
	require.NoError(t, late.Note(t.Context(), []keystore.Completion{completion("noted", "")}))
	require.Greater(t, numberOf(t, item(t, c, "noted"), "expires_at"), expires, "an expired note is replaced")
	v = acquire(t, late, "two", "open", time.Minute)
	require.Equal(t, keystore.TakenOver, v.Outcome, "an earlier call may have had its effect")
}

func (f *front) count(operation string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.requests[operation]
}

// Who loses a claim learns why from the same answer.
func TestLoserAsksNothingMore(t *testing.T) {
	t.Parallel()
	c, f := fronted(t)
	s := open(t, c)
	acquire(t, s, "one", "a", time.Minute)
	others := func() int { return f.count("GetItem") + f.count("UpdateItem") }
	before := others()
	v := acquire(t, s, "two", "a", time.Minute)
	require.Equal(t, keystore.Busy, v.Outcome)
	require.Equal(t, "one", v.Record.Owner)
	require.Equal(t, before, others(), "nothing but the claim itself was asked")
}

// What DynamoDB refuses for its own state, or for the caller's rights, passes when that does.
func TestClassify(t *testing.T) {
	t.Parallel()
	c, f := fronted(t)
	s := open(t, c)
	for _, one := range []struct {
		status int
		kind   string
		want   keystore.Fault
	}{
		{400, "ProvisionedThroughputExceededException", keystore.FaultUnavailable},
		{400, "ThrottlingException", keystore.FaultUnavailable},
		{400, "RequestLimitExceeded", keystore.FaultUnavailable},
		{400, "AccessDeniedException", keystore.FaultUnavailable},
		{400, "ExpiredTokenException", keystore.FaultUnavailable},
		{400, "ResourceNotFoundException", keystore.FaultUnavailable},
		{500, "InternalServerError", keystore.FaultUnavailable},
		{400, "TransactionConflictException", keystore.FaultContention},
		{400, "ReplicatedWriteConflictException", keystore.FaultContention},
		{400, "ValidationException", keystore.FaultOther},
	} {
		f.change(func(f *front) { f.refuse["PutItem"] = refusal{one.status, one.kind} })
		_, err := s.Acquire(t.Context(), "one", []keystore.Claim{claim("a")}, time.Minute)
		require.ErrorContains(t, err, one.kind)
		require.Equal(t, one.want, s.Classify(err), "%v", err)
	}
	require.Equal(t, keystore.FaultOther, s.Classify(nil))
	require.Equal(t, keystore.FaultOther, s.Classify(keystore.ErrLeaseLost))
}

// A name that is longer than the service takes is a key like any other.
func TestLongNames(t *testing.T) {
	t.Parallel()
	s := open(t, config(t))
	scope := strings.Repeat("s", 3000)
	for n := range 2 {
		verdicts, err := s.Acquire(t.Context(), "one", []keystore.Claim{{ID: keystore.ID{Scope: scope, Key: strconv.Itoa(n)}}}, time.Minute)
		require.NoError(t, err)
		require.Equal(t, keystore.Fresh, verdicts[0].Outcome)
	}
}

func numberOf(t *testing.T, item map[string]types.AttributeValue, name string) int64 {
	t.Helper()
	text, ok := item[name].(*types.AttributeValueMemberN)
	require.True(t, ok, "%s is %T", name, item[name])
	n, err := strconv.ParseInt(text.Value, 10, 64)
	require.NoError(t, err)
	return n
}
