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
	address := a.cfg.Admin.Listen
	if address == "" || address == "off" {
		return nil, nil
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen on admin.listen %s: %w (choose another address, or \"off\")", address, err)
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

func (s *admin) close() error { return s.server.Close() }

func (a *App) serveReady(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), 2*time.Second)
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
	for _, c := range *consumers {
		if err := c.sub.Consuming(); err != nil {
			return fmt.Errorf("binding %s does not consume: %w", c.name, err)
		}
	}
	return nil
}
