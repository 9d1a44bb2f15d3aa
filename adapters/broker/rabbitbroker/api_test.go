package rabbitbroker_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/internal/testenv"
)

// api calls RabbitMQ's management API and decodes the answer into out, where that is not nil.
func api(t testing.TB, server testenv.Rabbit, method, path string, body, out any) {
	t.Helper()
	var in io.Reader = http.NoBody
	if body != nil {
		raw, err := json.Marshal(body)
		require.NoError(t, err)
		in = bytes.NewReader(raw)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, server.API+"/api"+path, in)
	require.NoError(t, err)
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	raw, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	if method == http.MethodDelete && res.StatusCode == http.StatusNotFound {
		return // gone already, by itself
	}
	require.Less(t, res.StatusCode, 300, "%s %s: %s", method, path, raw)
	if out != nil {
		require.NoError(t, json.Unmarshal(raw, out))
	}
}

// queueState is what tests read of a queue.
type queueState struct {
	Ready     int            `json:"messages_ready"`
	Unacked   int            `json:"messages_unacknowledged"`
	Consumers int            `json:"consumers"`
	Type      string         `json:"type"`
	Durable   bool           `json:"durable"`
	Arguments map[string]any `json:"arguments"`
}

func queue(t testing.TB, server testenv.Rabbit, name string) queueState {
	t.Helper()
	var q queueState
	api(t, server, http.MethodGet, "/queues/"+server.VHost+"/"+url.PathEscape(name), nil, &q)
	return q
}

// cutConnections closes the connections of the virtual host whose client name ends so, and returns how many.
func cutConnections(t testing.TB, server testenv.Rabbit, suffix string) int {
	t.Helper()
	var all []struct {
		Name       string `json:"name"`
		VHost      string `json:"vhost"`
		Properties struct {
			Name string `json:"connection_name"`
		} `json:"client_properties"`
	}
	api(t, server, http.MethodGet, "/connections", nil, &all)
	cut := 0
	for _, conn := range all {
		if conn.VHost != server.VHost || !strings.HasSuffix(conn.Properties.Name, suffix) {
			continue
		}
		api(t, server, http.MethodDelete, "/connections/"+url.PathEscape(conn.Name), nil, nil)
		cut++
	}
	return cut
}

// eventually waits for the management API's counts, which are a second old.
func eventually(t testing.TB, check func() error) {
	t.Helper()
	testenv.Eventually(t, patience, check)
}

func wantReady(t testing.TB, server testenv.Rabbit, name string, ready int) {
	t.Helper()
	eventually(t, func() error {
		if q := queue(t, server, name); q.Ready != ready || q.Unacked != 0 {
			return fmt.Errorf("queue %s has %d ready and %d unacked messages, not %d and 0", name, q.Ready, q.Unacked, ready)
		}
		return nil
	})
}
