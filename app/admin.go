package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// admin serves /healthz (the process lives), /readyz (messages would be handled now) and /metrics.
type admin struct {
	server   *http.Server
	listener net.Listener
}

// newAdmin listens, so that a taken port stops the start and never leaves a process half alive.
func (a *App) newAdmin() (*admin, error) {
	address, on := a.cfg.Admin.Address()
	if !on {
		return nil, nil
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		if op := (*net.OpError)(nil); errors.As(err, &op) {
			err = op.Err // without the address, which is named already
		}
		return nil, fmt.Errorf("admin.listen: cannot listen on %s: %w (choose another address, or \"off\")", address, err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "alive") })
	mux.HandleFunc("GET /readyz", a.serveReady)
	mux.Handle("GET /metrics", promhttp.HandlerFor(a.metrics.registry, promhttp.HandlerOpts{}))
	return &admin{server: &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}, listener: listener}, nil
}

func (s *admin) run() error {
	if err := s.server.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("admin server: %w", err)
	}
	return nil
}

// close ends the server; requests under way may finish for a moment. Safe to call on nil.
func (s *admin) close() {
	if s == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), readyTimeout)
	defer cancel()
	if err := s.server.Shutdown(ctx); err != nil {
		s.server.Close()
	}
}

// readyTimeout bounds the answer of /readyz.
const readyTimeout = 2 * time.Second

func (a *App) serveReady(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), readyTimeout)
	defer cancel()
	if err := a.Ready(ctx); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ready")
}

// Ready returns nil while messages would be handled now: the database answers and every binding's subscription delivers.
func (a *App) Ready(ctx context.Context) error {
	consumers := a.state.consumers.Load()
	switch {
	case a.state.stopping.Load():
		return errors.New("stopping")
	case consumers == nil:
		return errors.New("starting")
	}
	if err := a.store.Ping(ctx); err != nil {
		return fmt.Errorf("database %s does not answer", a.cfg.Database)
	}
	if err := a.pingKeys(ctx); err != nil {
		return err
	}
	for _, c := range *consumers {
		if err := c.intake().Consuming(); err != nil {
			return fmt.Errorf("binding %s does not consume: %w", c.name, err)
		}
	}
	return nil
}
