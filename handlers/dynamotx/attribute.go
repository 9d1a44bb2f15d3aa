package dynamotx

import (
	"fmt"
	"strconv"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

// Item is an item, or the key of one, by the names of its attributes.
type Item map[string]types.AttributeValue

// String is an attribute of type S.
func String(text string) types.AttributeValue { return &types.AttributeValueMemberS{Value: text} }

// Int is an attribute of type N. It is exact: nothing passes through a float.
func Int(n int64) types.AttributeValue {
	return &types.AttributeValueMemberN{Value: strconv.FormatInt(n, 10)}
}

// String returns the text of an attribute of type S, and "" where there is none.
func (i Item) String(name string) string {
	if s, ok := i[name].(*types.AttributeValueMemberS); ok {
		return s.Value
	}
	return ""
}

// Int returns the number of an attribute of type N. An attribute that is missing, or is no whole number of 64 bits, is an error.
func (i Item) Int(name string) (int64, error) {
	n, ok := i[name].(*types.AttributeValueMemberN)
	if !ok {
		return 0, fmt.Errorf("the item has no number %q", name)
	}
	value, err := strconv.ParseInt(n.Value, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("the item's number %q is not a whole one of 64 bits", name)
	}
	return value, nil
}
