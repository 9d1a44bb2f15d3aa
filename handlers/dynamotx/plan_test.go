package dynamotx_test

import (
	"context"
	"errors"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/handlers/dynamotx"
	"github.com/oncemill/oncemill/handlers/internal/dynamotest"
)

// ifUnchanged rings on the condition that nobody has since the read.
func (b *bell) ifUnchanged(ctx context.Context, read dynamotx.Reader, _ *message.Message, _ handlers.Key) (dynamotx.Writes, error) {
	found, err := read.Get(ctx, b.db.Name("bells"), dynamotx.Item{"bell": dynamotx.String("b")})
	if err != nil {
		return dynamotx.Writes{}, err
	}
	item := b.ring("attribute_not_exists(rung)")
	if found != nil {
		item.Update.ConditionExpression = aws.String("rung = :seen")
		item.Update.ExpressionAttributeValues[":seen"] = found["rung"]
	}
	return dynamotx.Writes{Items: []types.TransactWriteItem{item}}, nil
}

func TestAPlanThatCameTooLateIsMadeAnew(t *testing.T) {
	b := newBell(t)
	e := b.handler(b.ifUnchanged).External()
	b.Before(dynamotest.Transact, func(n int) {
		if n <= 3 {
			b.Put(b.db.Name("bells"), dynamotest.Item{"bell": dynamotx.String("b"), "rung": dynamotx.Int(int64(10 * n))})
		}
	})
	result, err := call(t, e)
	require.NoError(t, err)
	require.Equal(t, "null", result)
	require.Equal(t, 31, b.rung())
	require.Equal(t, 4, b.Count(dynamotest.Transact))
}

func TestContentionIsBounded(t *testing.T) {
	b := newBell(t)
	e := b.handler(func(context.Context, dynamotx.Reader, *message.Message, handlers.Key) (dynamotx.Writes, error) {
		return dynamotx.Writes{Items: []types.TransactWriteItem{b.ring("attribute_exists(never)")}}, nil
	}).External()
	_, err := call(t, e)
	require.ErrorContains(t, err, "10 times")
	var permanent *handlers.PermanentError
	require.False(t, errors.As(err, &permanent))
	var unknown *handlers.UnknownError
	require.False(t, errors.As(err, &unknown), "each transaction was refused: %v", err)
	require.Equal(t, 10, b.Count(dynamotest.Transact))
	require.Empty(t, b.Items(b.db.Name("keys")))
}

func (b *bell) put(id string, bytes int) types.TransactWriteItem {
	return types.TransactWriteItem{Put: &types.Put{TableName: aws.String(b.db.Name("bells")), Item: dynamotx.Item{
		"bell": dynamotx.String(id), "rung": dynamotx.Int(1), "text": dynamotx.String(strings.Repeat("x", bytes)),
	}}}
}

func (b *bell) puts(n, bytes int) (items []types.TransactWriteItem) {
	for i := range n {
		items = append(items, b.put(strings.Repeat("b", i+1), bytes))
	}
	return items
}

func TestWhatFitsIntoATransaction(t *testing.T) {
	b := newBell(t)
	result, err := call(t, b.handler(planOf(dynamotx.Writes{Items: b.puts(99, 1), Result: "all"})).External())
	require.NoError(t, err)
	require.JSONEq(t, `"all"`, result)
	require.Len(t, b.Items(b.db.Name("bells")), 99)
}

// A number has a byte for each two digits: 22,000 of nineteen fit into an item.
func TestNumbersAreCountedAsTheServiceDoes(t *testing.T) {
	b := newBell(t)
	ids := make([]string, 22_000)
	for i := range ids {
		ids[i] = strconv.FormatInt(math.MaxInt64-int64(i), 10)
	}
	item := b.put("b", 1)
	item.Put.Item["ids"] = &types.AttributeValueMemberNS{Value: ids}
	_, err := call(t, b.handler(planOf(dynamotx.Writes{Items: []types.TransactWriteItem{item}})).External())
	if err != nil { // the emulator counts digits
		require.ErrorContains(t, err, "Item size")
	}
	require.Equal(t, 1, b.Count(dynamotest.Transact), "it is for the service to judge")
}

// nested puts an item with a map of lists of texts.
func (b *bell) nested(n, bytes int) types.TransactWriteItem {
	parts := map[string]types.AttributeValue{}
	for i := range n {
		parts[itoa(i)] = &types.AttributeValueMemberL{Value: []types.AttributeValue{dynamotx.String(strings.Repeat("x", bytes))}}
	}
	item := b.put("b", 1)
	item.Put.Item["parts"] = &types.AttributeValueMemberM{Value: parts}
	return item
}

func planOf(w dynamotx.Writes) dynamotx.Plan {
	return func(context.Context, dynamotx.Reader, *message.Message, handlers.Key) (dynamotx.Writes, error) {
		return w, nil
	}
}

// What the service would refuse is refused before it is asked.
func TestWhatDoesNotFit(t *testing.T) {
	const limit = 100 << 10 // of the payloads
	b := newBell(t)
	keys := types.TransactWriteItem{Delete: &types.Delete{TableName: aws.String(b.db.Name("keys")), Key: dynamotx.Item{"id": dynamotx.String("x")}}}
	unpublishable := message.NewMessage("u", nil)
	unpublishable.Metadata.Set("_watermill_x", "1")
	full := message.NewMessage("u", nil) // without the headers that publishing adds
	for n := range 8 {
		full.Metadata.Set(itoa(n), strings.Repeat("m", 4<<10-2))
	}
	nameless := types.TransactWriteItem{Put: &types.Put{Item: dynamotx.Item{"bell": dynamotx.String("b")}}}
	large := types.TransactWriteItem{Put: &types.Put{Item: dynamotx.Item{"bell": dynamotx.String(strings.Repeat("b", 400<<10))}}}
	for name, c := range map[string]struct {
		writes dynamotx.Writes
		code   string
		says   string
	}{
		"a hundred items":          {dynamotx.Writes{Items: b.puts(100, 1)}, "dynamodb-too-large", "101 writes"},
		"an item of 400 KB":        {dynamotx.Writes{Items: b.puts(1, 400<<10)}, "dynamodb-too-large", "409600 bytes"},
		"a map of 400 KB":          {dynamotx.Writes{Items: []types.TransactWriteItem{b.nested(100, 4<<10)}}, "dynamodb-too-large", "409600 bytes"},
		"4 MB":                     {dynamotx.Writes{Items: b.puts(11, 390<<10)}, "dynamodb-too-large", "4194304 bytes"},
		"a result of 64 KiB":       {dynamotx.Writes{Result: strings.Repeat("x", 64<<10)}, "dynamodb-too-large", "result"},
		"a result without JSON":    {dynamotx.Writes{Result: make(chan int)}, "dynamodb-invalid", "JSON"},
		"the keys table":           {dynamotx.Writes{Items: []types.TransactWriteItem{keys}}, "dynamodb-invalid", "may not write to the table"},
		"an empty action":          {dynamotx.Writes{Items: []types.TransactWriteItem{{}}}, "dynamodb-invalid", "write 1"},
		"a topic that is none":     {dynamotx.Writes{Outgoing: []dynamotx.Outgoing{{Topic: "a b", Payload: 1}}}, "dynamodb-invalid", "a b"},
		"a payload without JSON":   {dynamotx.Writes{Outgoing: []dynamotx.Outgoing{{Topic: "a", Payload: make(chan int)}}}, "dynamodb-invalid", "JSON"},
		"a message over the limit": {dynamotx.Writes{Outgoing: []dynamotx.Outgoing{{Topic: "a", Payload: strings.Repeat("x", limit)}}}, "dynamodb-invalid", "payload"},
		"metadata up to the limit": {dynamotx.Writes{Outgoing: []dynamotx.Outgoing{{Topic: "a", Payload: full}}}, "dynamodb-invalid", "metadata"},
		"no table":                 {dynamotx.Writes{Items: []types.TransactWriteItem{nameless}}, "dynamodb-invalid", "TableName"},
		"too large and no table":   {dynamotx.Writes{Items: []types.TransactWriteItem{large}}, "dynamodb-too-large", "409600 bytes"},
		"metadata of Watermill's":  {dynamotx.Writes{Outgoing: []dynamotx.Outgoing{{Topic: "a", Payload: unpublishable}}}, "dynamodb-invalid", "reserved"},
	} {
		t.Run(name, func(t *testing.T) {
			h := b.handler(planOf(c.writes))
			h.MaxPayload = limit
			_, err := call(t, h.External())
			var permanent *handlers.PermanentError
			require.ErrorAs(t, err, &permanent)
			require.Equal(t, c.code, permanent.Code)
			require.Contains(t, permanent.Text, c.says)
		})
	}
	require.Zero(t, b.Count(dynamotest.Transact))
}

// What only the service can see is its word, and no less permanent.
func TestTheServiceFindsWhatDoesNotFit(t *testing.T) {
	b := newBell(t)
	twice := b.puts(1, 1)
	_, err := call(t, b.handler(planOf(dynamotx.Writes{Items: append(twice, twice...)})).External())
	var permanent *handlers.PermanentError
	require.ErrorAs(t, err, &permanent)
	require.Equal(t, "dynamodb-invalid", permanent.Code)
	require.Empty(t, b.Items(b.db.Name("bells")))
}

func TestReadsAreInTheOrderOfTheirKeys(t *testing.T) {
	b := newBell(t)
	_, err := call(t, b.handler(planOf(dynamotx.Writes{Items: b.puts(99, 1)})).External())
	require.NoError(t, err)
	e := b.handler(func(ctx context.Context, read dynamotx.Reader, _ *message.Message, _ handlers.Key) (dynamotx.Writes, error) {
		var keys []dynamotx.Item
		for i := range 150 { // more than the service takes at once
			keys = append(keys, dynamotx.Item{"bell": dynamotx.String(strings.Repeat("b", 150-i))})
		}
		found, err := read.GetAll(ctx, b.db.Name("bells"), keys...)
		if err != nil {
			return dynamotx.Writes{}, err
		}
		var lengths []int
		for _, item := range found {
			lengths = append(lengths, len(item.String("bell")))
		}
		return dynamotx.Writes{Result: lengths}, nil
	}).External()
	b.Clear(b.db.Name("keys"))
	result, err := call(t, e)
	require.NoError(t, err)
	want := make([]string, 150)
	for i := range want {
		want[i] = "0"
		if n := 150 - i; n <= 99 {
			want[i] = itoa(n)
		}
	}
	require.JSONEq(t, "["+strings.Join(want, ",")+"]", result)
}
