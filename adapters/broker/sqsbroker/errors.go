package sqsbroker

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"

	"github.com/oncemill/oncemill/middleware/outbox"
)

var (
	errClosed = fmt.Errorf("sqs: the broker is closed (%w)", outbox.ErrUnavailable)
	// errEarlier stops the messages of an ordering key that follow a refused one.
	errEarlier = errors.New("an earlier message of its ordering key was refused")
	errNoQueue = errors.New("the queue does not exist")
)

func noQueue(err error) bool {
	var missing *types.QueueDoesNotExist
	return errors.As(err, &missing) || strings.HasSuffix(code(err), "NonExistentQueue")
}

func code(err error) string {
	var api smithy.APIError
	if errors.As(err, &api) {
		return api.ErrorCode()
	}
	return ""
}

// tooLong are the answers to a batch of which some message may be at fault.
func tooLong(err error) bool {
	var long *types.BatchRequestTooLong
	if errors.As(err, &long) {
		return true
	}
	return ofMessage(code(err))
}

// ofMessage reports whether a code blames the message itself.
func ofMessage(code string) bool {
	switch code {
	case "InvalidMessageContents", "InvalidParameterValue", "InvalidAttributeValue", "MessageAttributesInvalid":
		return true
	}
	return false
}

// classify marks what says nothing about the message: no answer, a throttled or refused caller, a fault of the service.
func classify(err error) error {
	var api smithy.APIError
	switch {
	case err == nil, errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errors.Is(err, outbox.ErrUnavailable):
		return err
	case !errors.As(err, &api):
		return fmt.Errorf("%w: %w", outbox.ErrUnavailable, err)
	case api.ErrorFault() == smithy.FaultServer, ofCaller(api.ErrorCode()):
		return fmt.Errorf("%w: %w", outbox.ErrUnavailable, err)
	}
	return err
}

// ofCaller reports whether a code refuses the caller, for a while or until an operator changes something.
func ofCaller(code string) bool {
	for _, part := range []string{"Throttl", "AccessDenied", "ExpiredToken", "Token", "Signature", "Security", "Kms", "KMS", "OverLimit", "ServiceUnavailable", "InternalError"} {
		if strings.Contains(code, part) {
			return true
		}
	}
	return false
}
