package memory

import "github.com/ratelimit-go/ratelimit/internal/kernel"

// Tables.Hold is for states of one word. This file is for wider ones, if their kernel is Dated. What
// is remembered of a hold is the Due of the answer, and a Held without a state.

// HoldDated is Apply for an OpHold that is Dated. If a key has a place in the store, and the events
// are granted, it fills in h. If the answer has a Grant, that is what was held instead.
func (sp *Tables) HoldDated(key string, req *kernel.Request, h *Held, a *kernel.Answer) {
	id := sp.store.identify(key)
	sp.apply(id, req, a)
	h.set(id, a)
}

// SettleDated is Apply for an OpSettle that is Dated.
func (sp *Tables) SettleDated(h *Held, req *kernel.Request, a *kernel.Answer) {
	req.Epoch = h.epoch
	sp.apply(identity{h.hi, h.lo}, req, a)
}

// HoldDated is that of Tables, by k.
func (sp *Logs) HoldDated(key string, k *kernel.Compiled, req *kernel.Request, h *Held, a *kernel.Answer) {
	id := sp.store.identify(key)
	sp.applyTo(id, k, req, a)
	h.set(id, a)
}

// SettleDated is that of Tables, by k.
func (sp *Logs) SettleDated(h *Held, k *kernel.Compiled, req *kernel.Request, a *kernel.Answer) {
	req.Epoch = h.epoch
	sp.applyTo(identity{h.hi, h.lo}, k, req, a)
}

// set fills in h after a Dated OpHold.
func (h *Held) set(id identity, a *kernel.Answer) {
	if a.Allowed && a.Grant == nil {
		h.hi, h.lo, h.epoch = id.hi, id.lo, a.Epoch
	}
}

// Known reports whether h was filled in.
func (h *Held) Known() bool { return h.hi != 0 }
