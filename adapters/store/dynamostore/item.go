package dynamostore

import (
	"crypto/sha256"
	"fmt"
	"regexp"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/oncemill/oncemill/internal/awsclock"
	"github.com/oncemill/oncemill/middleware/keystore"
)

// keyAttribute is the partition key; ttlAttribute is when the service may remove the item, in seconds. All other times are milliseconds. An item
// has state, fingerprint, owner, token; in progress lease_until, lease, takeovers, first_at; completed epoch, result, processed_at, expires_at.
const (
	keyAttribute = "id"
	ttlAttribute = "expires_at"
)

type values = map[string]types.AttributeValue

// maxName bounds what people can read of a name; the service takes 2048 bytes.
const maxName = 1024

// name is the partition key of an ID, in binary: bytes that are no text would come out changed. The length of the scope keeps scope and key apart.
func name(id keystore.ID) types.AttributeValue {
	text := fmt.Sprintf("%d:%s:%s", len(id.Scope), id.Scope, id.Key)
	if len(text) > maxName {
		text = fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(text)))
	}
	return blob([]byte(text))
}

func text(s string) types.AttributeValue { return &types.AttributeValueMemberS{Value: s} }

func number(n int64) types.AttributeValue {
	return &types.AttributeValueMemberN{Value: strconv.FormatInt(n, 10)}
}

func blob(b []byte) types.AttributeValue { return &types.AttributeValueMemberB{Value: b} }

var placeholders = regexp.MustCompile(`#[a-z_]+`)

// names says what the placeholders of expressions stand for, which is their own name: some are reserved words.
func names(expressions ...string) map[string]string {
	all := map[string]string{}
	for _, e := range expressions {
		for _, p := range placeholders.FindAllString(e, -1) {
			all[p] = p[1:]
		}
	}
	return all
}

func textOf(v values, name string) string {
	if s, ok := v[name].(*types.AttributeValueMemberS); ok {
		return s.Value
	}
	return ""
}

func numberOf(v values, name string) int64 {
	if s, ok := v[name].(*types.AttributeValueMemberN); ok {
		n, _ := strconv.ParseInt(s.Value, 10, 64)
		return n
	}
	return 0
}

// view is an item as it stood, and the service's time at least when it did.
type view struct {
	values
	earliest time.Time
}

// state counts a completed key whose time is over as absent: the service removes it days later.
func (v view) state() keystore.State {
	state := keystore.State(textOf(v.values, "state"))
	if state == keystore.Completed && numberOf(v.values, ttlAttribute) <= v.earliest.Unix() {
		return keystore.Absent
	}
	return state
}

// left is how long nobody else gets the lease; zero or less once it is over for sure.
func (v view) left() time.Duration {
	return awsclock.Left(numberOf(v.values, "lease_until"), v.earliest)
}

func (v view) record(id keystore.ID) keystore.Record {
	r := keystore.Record{ID: id, State: v.state()}
	if r.State == keystore.Absent {
		return r
	}
	r.Fingerprint, r.Owner, r.Epoch = textOf(v.values, "fingerprint"), textOf(v.values, "owner"), textOf(v.values, "epoch")
	r.Takeovers = int(numberOf(v.values, "takeovers"))
	if result, ok := v.values["result"].(*types.AttributeValueMemberB); ok {
		r.Result = result.Value
	}
	switch r.State {
	case keystore.InProgress:
		r.FirstAt = time.UnixMilli(numberOf(v.values, "first_at"))
		r.ProcessedAt = r.FirstAt
		// Of the time until somebody else may have it the clock's doubt is a part: nobody was promised more than the lease.
		r.LeaseLeft = min(v.left(), time.Duration(numberOf(v.values, "lease"))*time.Millisecond)
	case keystore.Completed:
		r.ProcessedAt, r.ExpiresAt = time.UnixMilli(numberOf(v.values, "processed_at")), time.Unix(numberOf(v.values, ttlAttribute), 0)
	}
	return r
}
