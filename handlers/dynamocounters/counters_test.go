package dynamocounters_test

import (
	"fmt"
	"math"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/handlers/dynamocounters"
	"github.com/oncemill/oncemill/handlers/dynamotx"
	"github.com/oncemill/oncemill/handlers/handlertest"
	"github.com/oncemill/oncemill/handlers/internal/dynamotest"
	"github.com/oncemill/oncemill/internal/testenv"
)

// place is a set of tables of a test's own.
type place struct {
	*dynamotest.Server
	t      *testing.T
	config dynamocounters.Config
}

func newPlace(t *testing.T) *place {
	t.Helper()
	p := &place{Server: dynamotest.Start(t), t: t, config: dynamocounters.Config{}.Defaults()}
	p.config.DynamoDB.Endpoint, p.config.DynamoDB.Region = p.Endpoint, dynamotest.Region
	p.config.DynamoDB.Prefix, p.config.DynamoDB.Create = testenv.Name(t, "c")+"-", true
	return p
}

func (p *place) kit(t *testing.T) *handlertest.Kit {
	t.Helper()
	return handlertest.New(t, dynamocounters.Plugin(), p.config)
}

// totals are the counters, after a check that each is the sum of its events.
func (p *place) totals() map[string]string {
	p.t.Helper()
	sums, totals := map[string]int64{}, map[string]string{}
	for _, event := range p.Items(p.config.DynamoDB.Prefix + "events") {
		delta, err := dynamotx.Item(event).Int("delta")
		require.NoError(p.t, err)
		sums[dynamotest.Text(event, "counter")] += delta
	}
	for _, counter := range p.Items(p.config.DynamoDB.Prefix + "counters") {
		name, total := dynamotest.Text(counter, "name"), dynamotest.Text(counter, "total")
		require.Equal(p.t, strconv.FormatInt(sums[name], 10), total, "the total of %s is the sum of its events", name)
		totals[name] = total
	}
	require.Len(p.t, totals, len(sums))
	return totals
}

func add(counter string, delta int64) string {
	return fmt.Sprintf(`{"counter":%q,"delta":%d}`, counter, delta)
}

func TestEachMessageCountsOnce(t *testing.T) {
	p := newPlace(t)
	k := p.kit(t)
	k.DeliverTwice("counters.add", "a", []byte(add("apples", 5)))
	k.DeliverTwice("counters.add", "b", []byte(add("apples", 2)))
	k.DeliverTwice("payments.completed", "p", []byte(`{"currency":"EUR","from":"alice","to":"bob"}`))
	k.DeliverToRivals("counters.add", "c", []byte(add("apples", 10)))
	require.Equal(t, map[string]string{
		"apples": "17", "payments.completed": "1", "payments.completed:EUR": "1", "payments.completed:EUR:alice": "1",
	}, p.totals())
	k.WantDead()
	k.WantQuiet()
}

// The key's item is all that keeps a crash after the commit from counting again.
func TestFailureAtEachStep(t *testing.T) {
	p := newPlace(t)
	k := p.kit(t)
	k.FailEverywhere("counters.add", "k", []byte(add("apples", 5)), func(k *handlertest.Kit) {
		totals := p.totals()
		p.Clear(p.config.DynamoDB.Prefix) // the next step has a database of its own, but these tables
		require.Equal(k.T(), map[string]string{"apples": "5"}, totals)
		k.WantDead()
		k.WantQuiet()
	})
}

func TestRivalsOnOneCounter(t *testing.T) {
	p := newPlace(t)
	const kits, messages = 4, 10
	var work sync.WaitGroup
	for n := range kits {
		k := p.kit(t) // a database of its own, as another application's
		work.Go(func() {
			for i := range messages {
				k.Deliver("counters.add", fmt.Sprint(n, "-", i), []byte(add("apples", 1)))
				k.Deliver("counters.add", fmt.Sprint("shared-", i), []byte(add("pears", 1)))
			}
		})
	}
	work.Wait()
	require.Equal(t, map[string]string{"apples": strconv.Itoa(kits * messages), "pears": strconv.Itoa(messages)}, p.totals())
}

func TestLostAnswers(t *testing.T) {
	for _, lost := range []int{1, 2, 3, 7} { // three sendings make a call
		t.Run(strconv.Itoa(lost), func(t *testing.T) {
			p := newPlace(t)
			k := p.kit(t)
			p.Lose(dynamotest.Transact, lost)
			k.Deliver("counters.add", "k", []byte(add("apples", 5)))
			for range 5 {
				k.Advance(2 * patience)
			}
			k.WantQuiet()
			k.WantDead()
			require.Equal(t, map[string]string{"apples": "5"}, p.totals())
			require.Equal(t, handlertest.Duplicate, k.Deliver("counters.add", "k", []byte(add("apples", 5))))
		})
	}
}

func TestATotalNeverOverflows(t *testing.T) {
	p := newPlace(t)
	k := p.kit(t)
	require.Equal(t, handlertest.Completed, k.Deliver("counters.add", "a", []byte(add("apples", math.MaxInt64-1))))
	require.Equal(t, handlertest.Dead, k.Deliver("counters.add", "b", []byte(add("apples", 2))))
	require.Equal(t, handlertest.Completed, k.Deliver("counters.add", "c", []byte(add("apples", 1))))
	require.Equal(t, handlertest.Dead, k.Deliver("counters.add", "d", []byte(add("apples", 1))))
	k.WantDead("counter-overflow", "counter-overflow")
	require.Equal(t, map[string]string{"apples": "9223372036854775807"}, p.totals())
}

// Another addition comes between the reads and the commit: the condition finds the overflow that the plan did not see.
func TestAnOverflowAfterTheReads(t *testing.T) {
	p := newPlace(t)
	k := p.kit(t)
	require.Equal(t, handlertest.Completed, k.Deliver("counters.add", "a", []byte(add("apples", math.MaxInt64-1))))
	rival := p.kit(t)
	p.Before(dynamotest.Transact, func(n int) {
		if n == 2 {
			rival.Deliver("counters.add", "b", []byte(add("apples", 1)))
		}
	})
	require.Equal(t, handlertest.Dead, k.Deliver("counters.add", "c", []byte(add("apples", 1))))
	k.WantDead("counter-overflow")
	require.Equal(t, map[string]string{"apples": "9223372036854775807"}, p.totals())
}

func TestRefusedMessagesLeaveNothing(t *testing.T) {
	p := newPlace(t)
	k := p.kit(t)
	for i, body := range []string{`{"counter":"a","delta":0}`, `{"counter":"a","delta":1.5}`, `{"counter":"a"}`, `{"delta":1}`, `[]`} {
		require.Equal(t, handlertest.Dead, k.Deliver("counters.add", fmt.Sprint(i), []byte(body)), body)
	}
	require.Equal(t, handlertest.Dead, k.Deliver("payments.completed", "p", []byte(`{"currency":"EUR"}`)))
	k.WantDead("delta", "delta", "delta", "counter", "payload-not-json", "from")
	require.Empty(t, p.totals())
	require.Empty(t, p.Items(p.config.DynamoDB.Prefix+"keys"))
}

func TestAsManyCountersAsFitIntoATransaction(t *testing.T) {
	p := newPlace(t)
	var patterns []string
	for n := range 50 {
		patterns = append(patterns, fmt.Sprint("counter-", n))
	}
	p.config.PerPayment = patterns[:49]
	k := p.kit(t)
	require.Equal(t, handlertest.Completed, k.Deliver("payments.completed", "p", []byte(`{"currency":"EUR"}`)))
	require.Len(t, p.totals(), 49)

	p.config.PerPayment = patterns
	k = p.kit(t)
	sent := p.Count(dynamotest.Transact)
	require.Equal(t, handlertest.Dead, k.Deliver("payments.completed", "q", []byte(`{"currency":"EUR"}`)))
	k.WantDead("dynamodb-too-large")
	require.Equal(t, sent, p.Count(dynamotest.Transact), "it is refused before anything is sent")
}

// The keys table has forgotten the key: the event itself tells that it was counted.
func TestAnExpiredKeyIsNotCountedAgain(t *testing.T) {
	p := newPlace(t)
	require.Equal(t, handlertest.Completed, p.kit(t).Deliver("counters.add", "k", []byte(add("apples", 5))))
	table := p.config.DynamoDB.Prefix + "keys"
	key := p.Items(table)[0]
	key["expires_at"] = dynamotx.Int(1)
	p.Put(table, key)
	k := p.kit(t)
	require.Equal(t, handlertest.Dead, k.Deliver("counters.add", "k", []byte(add("apples", 5))))
	k.WantDead("counter-event-exists")
	require.Equal(t, map[string]string{"apples": "5"}, p.totals())
}

func TestConfigIsChecked(t *testing.T) {
	for text, want := range map[string]string{
		`per_payment: ["{who}"]`:            "per_payment[0]",
		`dynamodb: {endpoint: "localhost"}`: "dynamodb: endpoint",
		`dynamodb: {prefix: "a b"}`:         "dynamodb: prefix",
		`dynamodb: {retention: 10s}`:        "dynamodb: retention",
	} {
		require.ErrorContains(t, openWith(text), want)
	}
	require.NoError(t, openWith(`dynamodb: {region: eu-central-1}`))
}
