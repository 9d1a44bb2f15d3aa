package dynamotx

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

// errContended is a transaction that lost against others.
var errContended = errors.New("other writers changed the items first")

// Codes of cancellation reasons.
const (
	conditionFailed = "ConditionalCheckFailed"
	conflict        = "TransactionConflict"
	validation      = "ValidationError"
	collectionFull  = "ItemCollectionSizeLimitExceeded"
)

// unanswered reports an error that leaves open whether the service has committed, or still will.
func unanswered(err error) bool {
	var dial *net.OpError
	if errors.As(err, &dial) && dial.Op == "dial" {
		return false // nothing was sent
	}
	var params smithy.InvalidParamsError
	if errors.As(err, &params) {
		return false // by the SDK itself
	}
	var running *types.TransactionInProgressException
	if errors.As(err, &running) {
		return true
	}
	var response *smithyhttp.ResponseError
	if errors.As(err, &response) && response.HTTPStatusCode() >= 500 {
		return true
	}
	var api smithy.APIError
	return !errors.As(err, &api) || api.ErrorFault() == smithy.FaultServer
}

// refused makes of the service's answer what the engine shall do. A failed condition and a conflict are errContended.
func refused(err error) error {
	var cancelled *types.TransactionCanceledException
	if errors.As(err, &cancelled) {
		return cancellation(cancelled.CancellationReasons, err)
	}
	var params smithy.InvalidParamsError
	if errors.As(err, &params) {
		return invalid("the plan's writes are not complete: %s", params.Error())
	}
	var api smithy.APIError
	if errors.As(err, &api) && api.ErrorCode() == "ValidationException" {
		return invalid("%s", api.ErrorMessage())
	}
	return fmt.Errorf("write to DynamoDB: %w", err)
}

// cancellation decides by the gravest of the reasons: what can never succeed, then what passes by itself, then what asks for a new plan.
func cancellation(reasons []types.CancellationReason, err error) error {
	var contended, throttled bool
	for n, reason := range reasons {
		switch code := text(reason.Code); {
		case code == validation || code == collectionFull || code == "ValidationException":
			return invalid("write %d of the transaction: %s: %s", n, code, text(reason.Message))
		case code == conditionFailed || code == conflict:
			contended = true
		case code != "" && code != "None":
			throttled = true
		}
	}
	if contended && !throttled {
		return errContended
	}
	return fmt.Errorf("write to DynamoDB: %w", err)
}

// missingTable reports that the service does not know a table.
func missingTable(err error) bool {
	var missing *types.ResourceNotFoundException
	if errors.As(err, &missing) {
		return true
	}
	return err != nil && strings.Contains(err.Error(), "ResourceNotFound")
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
