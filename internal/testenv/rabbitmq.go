package testenv

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
)

// Rabbit is a RabbitMQ virtual host that belongs to one test.
type Rabbit struct {
	// URL is what AMQP clients dial, with the virtual host.
	URL string
	// API is the root of the management API, with user and password, for
	// requests like API + "/api/queues/" + VHost. Its counts are up to two seconds old;
	// a passive declaration over AMQP has them at once.
	API string
	// VHost is the name of the virtual host, which needs no escaping.
	VHost string
}

// RabbitMQ returns a fresh, empty virtual host, or skips the test. It is deleted
// with all its queues at the end of the test, which closes connections left open.
func RabbitMQ(t testing.TB) Rabbit {
	t.Helper()
	values := lookup(t, "rabbitmq")
	u, err := url.Parse(values[0])
	if err != nil {
		t.Fatalf("testenv: ONCEMILL_TEST_RABBITMQ: %v", err)
	}
	r := Rabbit{API: strings.TrimSuffix(values[1], "/"), VHost: Name(t, "")}
	u.Path = "/" + r.VHost
	r.URL = u.String()

	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	// Who creates a virtual host through the API may use it.
	if err := r.request(ctx, http.MethodPut); err != nil {
		t.Fatalf("testenv: create virtual host: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
		defer cancel()
		if err := r.request(ctx, http.MethodDelete); err != nil {
			t.Errorf("testenv: delete virtual host %s: %v", r.VHost, err)
		}
	})
	return r
}

// request creates or deletes the virtual host.
func (r Rabbit) request(ctx context.Context, method string) error {
	req, err := http.NewRequestWithContext(ctx, method, r.API+"/api/vhosts/"+r.VHost, http.NoBody)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	text, _ := io.ReadAll(io.LimitReader(res.Body, 1000))
	if res.StatusCode >= 300 {
		return fmt.Errorf("%s: %s", res.Status, text)
	}
	return nil
}
