package app

import (
	"fmt"
	"net/http"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain fails when anything of the applications that the tests ran still goes on.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "prove" { // a replica of a trial that a test runs
		os.Exit(Main(provingSet(os.Getenv(provingAs))))
	}
	code := m.Run()
	http.DefaultClient.CloseIdleConnections() // of the tests' own requests
	err := goleak.Find(
		goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"), // sarama's, one for the process
		// A Watermill router that could not start waits for the handlers that it did not start.
		goleak.IgnoreAnyFunction("github.com/ThreeDotsLabs/watermill/message.(*Router).watchAllHandlersStopped.func1"),
	)
	if err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}
