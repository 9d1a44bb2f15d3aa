package app

import (
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The last spans reach the collector when the program ends, long before the exporter would have sent them by itself.
func TestTracesAreSentAtTheEnd(t *testing.T) {
	t.Parallel()
	var sent atomic.Int64
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/traces" && r.Header.Get("Authorization") == "Bearer "+password {
			n, _ := io.Copy(io.Discard, r.Body)
			sent.Add(n)
		}
		w.WriteHeader(http.StatusOK)
	}))
	t.Cleanup(collector.Close)
	l := &tally{}
	c := newConsole(t, l.set())
	run := c.with("TELEMETRY__OTLP_ENDPOINT="+collector.URL, "TELEMETRY__OTLP_AUTHORIZATION=Bearer "+password).start()
	c.publish(tallyTopic, "k", "{}")
	c.waitKey(tallyScope, "k", "completed")
	code, _ := run.end()
	require.Equal(t, ExitOK, code, run.errs)
	require.Positive(t, sent.Load())
}

// A collector that does not answer costs the end a bounded time, and no failure.
func TestCollectorThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	held := make(chan struct{})
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		<-held
	}))
	t.Cleanup(collector.Close)
	t.Cleanup(func() { close(held) })
	l := &tally{}
	c := newConsole(t, l.set())
	run := c.with("TELEMETRY__OTLP_ENDPOINT=" + collector.URL + "/v1/traces").start()
	c.publish(tallyTopic, "k", "{}")
	c.waitKey(tallyScope, "k", "completed")
	code, took := run.end()
	require.Equal(t, ExitOK, code, run.errs)
	require.Less(t, took, flushTimeout+5*time.Second)
	require.Contains(t, run.errs.String(), "the last traces could not be sent")
}

func TestEndpointOfTraces(t *testing.T) {
	t.Parallel()
	for endpoint, want := range map[string]string{
		"http://localhost:4318":             "http://localhost:4318/v1/traces",
		"https://collector.example.org/":    "https://collector.example.org/v1/traces",
		"https://example.org/otlp/traces":   "https://example.org/otlp/traces",
		"http://u:p@localhost:4318":         "http://u:p@localhost:4318/v1/traces",
		"http://u:" + password + "%@host:x": "",
		"http://":                           "",
	} {
		got, err := tracesURL(endpoint)
		require.Equal(t, want, got)
		if want == "" {
			require.ErrorContains(t, err, "is not a URL")
			require.NotContains(t, err.Error(), passwordPart)
		}
	}
}
