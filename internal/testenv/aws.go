package testenv

import (
	"os"
	"testing"
)

// AWS is a server that stands in for Amazon's.
type AWS struct {
	// Endpoint is its URL. It takes any region and any credentials.
	Endpoint string
	// Python is the path of an interpreter that has boto3.
	Python string
}

// SQS returns the server that stands in for Amazon SQS, or skips the test. Where the environment has no credentials for the SDK, the
// process gets some. Queues are shared with other tests: name them by [Name].
func SQS(t testing.TB) AWS {
	t.Helper()
	return moto(t)
}

// DynamoDB returns the server that stands in for Amazon DynamoDB; it is [SQS]'s. Tables are shared with other tests: name them by [Name].
func DynamoDB(t testing.TB) AWS {
	t.Helper()
	return moto(t)
}

func moto(t testing.TB) AWS {
	t.Helper()
	values := lookup(t, "moto")
	for name, value := range map[string]string{"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"} {
		if os.Getenv(name) != "" {
			continue
		}
		// Not t.Setenv, which parallel tests may not use.
		if err := os.Setenv(name, value); err != nil { //nolint:usetesting // it is to stay
			t.Fatalf("testenv: %v", err)
		}
	}
	return AWS{Endpoint: values[0], Python: values[1]}
}
