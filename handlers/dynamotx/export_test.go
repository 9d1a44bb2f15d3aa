package dynamotx

import "github.com/oncemill/oncemill/handlers"

// Forgetful is External without the memory between a call and its record.
func (h Handler) Forgetful() handlers.External {
	r := &runner{Handler: h, recent: newRecent(0)}
	e := h.External()
	e.Call, e.Record = r.call, r.record
	return e
}
