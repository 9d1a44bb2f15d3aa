package dynamotx_test

import (
	"context"
	"encoding/json"
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/handlers/dynamotx"
	"github.com/oncemill/oncemill/handlers/handlertest"
	"github.com/oncemill/oncemill/handlers/internal/dynamotest"
	"github.com/oncemill/oncemill/internal/testenv"
)

// bell is a table of bells. What rings one does nothing else that could tell a second run from the first.
type bell struct {
	*dynamotest.Server
	t   *testing.T
	cfg dynamotx.Config
	db  *dynamotx.DB
}

var bells = dynamotx.Table{Name: "bells", Partition: "bell"}

func newBell(t *testing.T) *bell {
	t.Helper()
	b := &bell{Server: dynamotest.Start(t), t: t, cfg: dynamotx.Defaults(testenv.Name(t, "b") + "-")}
	b.cfg.Endpoint, b.cfg.Region, b.cfg.Create = b.Endpoint, dynamotest.Region, true
	b.db = dynamotx.New(b.cfg, bells)
	return b
}

// ring adds one to the bell, whatever happened before.
func (b *bell) ring(condition string) types.TransactWriteItem {
	update := &types.Update{
		TableName: aws.String(b.db.Name("bells")), Key: dynamotx.Item{"bell": dynamotx.String("b")},
		UpdateExpression:          aws.String("ADD rung :one"),
		ExpressionAttributeValues: dynamotx.Item{":one": dynamotx.Int(1)},
	}
	if condition != "" {
		update.ConditionExpression = aws.String(condition)
	}
	return types.TransactWriteItem{Update: update}
}

// rung is how often the bell was rung.
func (b *bell) rung() int {
	b.t.Helper()
	items := b.Items(b.db.Name("bells"))
	if len(items) == 0 {
		return 0
	}
	n, err := strconv.Atoi(dynamotest.Text(items[0], "rung"))
	require.NoError(b.t, err)
	return n
}

// once is a plan that rings, and says what it is the how-manieth plan.
func (b *bell) once() dynamotx.Plan {
	plans := 0
	return func(context.Context, dynamotx.Reader, *message.Message, handlers.Key) (dynamotx.Writes, error) {
		plans++
		return dynamotx.Writes{
			Items: []types.TransactWriteItem{b.ring("")}, Result: plans,
			Outgoing: []dynamotx.Outgoing{{Topic: "bells.rung", Payload: map[string]int{"plan": plans}}},
		}, nil
	}
}

func (b *bell) handler(plan dynamotx.Plan) dynamotx.Handler {
	return dynamotx.Handler{DB: b.db, Plan: plan}
}

// kit is an engine around the plan.
func (b *bell) kit(plan dynamotx.Plan) *handlertest.Kit {
	return kitOf(b.t, b.handler(plan).External())
}

func kitOf(t *testing.T, e handlers.External) *handlertest.Kit {
	t.Helper()
	return handlertest.New(t, handlers.Plugin{Name: "bells", Open: handlers.Open(func(_ struct{}, bs *handlers.Bindings) error {
		bs.OnExternal("bells.ring", e)
		return nil
	})}, nil)
}

// key is the key of every message.
const key = "k"

// call calls once, as the engine would.
func call(t *testing.T, e handlers.External) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	msg := message.NewMessage("m", []byte("{}"))
	result, err := e.Call(ctx, msg, handlers.NewKey(handlertest.Service+"/bells", key))
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(result)
	require.NoError(t, err)
	return string(text), nil
}
