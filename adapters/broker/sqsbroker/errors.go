package sqsbroker

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/oncemill/oncemill/internal/awsconf"
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
	return errors.As(err, &missing) || strings.HasSuffix(awsconf.Code(err), "NonExistentQueue")
}

// tooLong are the answers to a batch of which some message may be at fault.
func tooLong(err error) bool {
	var long *types.BatchRequestTooLong
	if errors.As(err, &long) {
		return true
	}
	return ofMessage(awsconf.Code(err))
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
	switch {
	case err == nil, errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errors.Is(err, outbox.ErrUnavailable):
		return err
	case awsconf.Passing(err):
		return fmt.Errorf("%w: %w", outbox.ErrUnavailable, err)
	}
	return err
}
