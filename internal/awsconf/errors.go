package awsconf

import (
	"errors"
	"strings"

	"github.com/aws/smithy-go"
)

// Code is the service's name for an error; "" where the service did not answer.
func Code(err error) string {
	var api smithy.APIError
	if errors.As(err, &api) {
		return api.ErrorCode()
	}
	return ""
}

// Passing reports whether an error says nothing about the request itself: no answer, a fault of the service, or a refusal of the caller, for a
// while or until an operator changes something.
func Passing(err error) bool {
	var api smithy.APIError
	return !errors.As(err, &api) || api.ErrorFault() == smithy.FaultServer || ofCaller(api.ErrorCode())
}

func ofCaller(code string) bool {
	for _, part := range []string{"Throttl", "AccessDenied", "ExpiredToken", "Token", "Signature", "Security", "Kms", "KMS", "OverLimit", "ServiceUnavailable", "InternalError"} {
		if strings.Contains(code, part) {
			return true
		}
	}
	return false
}
