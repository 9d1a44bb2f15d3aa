package smtpsink

import (
	"encoding/json"
	"encoding/pem"
	"net/http"
)

// handler is the HTTP interface, described in the package comment.
func (s *Sink) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusOK)
	})
	mux.HandleFunc("GET /letters", func(w http.ResponseWriter, _ *http.Request) {
		s.mu.Lock()
		view := struct {
			Letters  []Letter `json:"letters"`
			Absorbed int      `json:"absorbed"`
		}{append([]Letter{}, s.letters...), s.absorbed}
		s.mu.Unlock()
		answer(w, view)
	})
	mux.HandleFunc("DELETE /letters", func(w http.ResponseWriter, _ *http.Request) {
		s.Reset()
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("GET /faults", func(w http.ResponseWriter, _ *http.Request) { answer(w, s.Faults()) })
	mux.HandleFunc("PUT /faults", func(w http.ResponseWriter, r *http.Request) {
		var f Faults
		d := json.NewDecoder(r.Body)
		d.DisallowUnknownFields()
		if err := d.Decode(&f); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		s.SetFaults(f)
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("GET /certificate", func(w http.ResponseWriter, r *http.Request) {
		if s.cert.Leaf == nil {
			http.NotFound(w, r)
			return
		}
		_ = pem.Encode(w, &pem.Block{Type: "CERTIFICATE", Bytes: s.cert.Leaf.Raw})
	})
	return mux
}

func answer(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(value)
}
