package memory

import (
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// This file decides on the states of a Joint, which nobody else changes, and changes them.

// decide reads the clocks, and reports whether all keys grant the request. It changes no state.
func (j *Joint) decide() (granted bool) {
	j.read()
	if granted = j.all(); !granted && j.renew() {
		j.read()
		granted = j.all()
	}
	return granted
}

// renew calls Timeline.Renew for all clocks.
func (j *Joint) renew() (renewed bool) {
	for i := range j.Asked {
		if j.sameClock(i) == nil && j.Asked[i].Clock.Renew() {
			renewed = true
		}
	}
	return renewed
}

// noted reports whether a key notes that the request is denied. Like the parts of an All, none
// does if one of them never grants as many events.
func (j *Joint) noted() (notes bool) {
	for i := range j.Asked {
		notes = notes || j.leads(i) && j.Asked[i].k.Notes()
	}
	for i := range j.Asked {
		if e := &j.Asked[i]; notes && e.Sum > e.kernel().Limit() {
			return false
		}
	}
	return notes
}

func (j *Joint) all() bool {
	for i := range j.Asked {
		if e := &j.Asked[i]; e.refused || j.leads(i) && !e.grants(j.as(e)) {
			return false
		}
	}
	return true
}

// grants reports whether the key grants the request.
func (e *Asked) grants(req *kernel.Request) bool {
	if e.next[0], e.decided = e.old, false; e.word != nil && req.Op == kernel.OpTake && e.mayEnter() {
		var t kernel.Taking
		if t.Take(e.word, e.old, req.Fixed.Now, e.Sum); t.Granted {
			e.next[0], e.decided = t.Next, true
			e.k.Tell(&t, e.old, req.Fixed, &e.Answer)
		}
		return e.decided
	}
	switch {
	case e.word != nil:
		return e.k.Grants(e.next[:], req)
	case !e.found:
		return e.k.Grants(e.fresh, req)
	case !e.logged:
		return e.k.Grants(e.t.state(e.at), req)
	}
	entry := &e.ls.slots[e.slot]
	k, st, _ := e.k.Meet(e.ls.kernel(entry), e.ls.state(entry), e.now)
	return k.Grants(st, req)
}

// spend applies the request to the state, which grants it.
func (e *Asked) spend(req *kernel.Request) {
	switch {
	case e.word != nil:
		if !e.decided {
			e.k.Step(e.next[:], req, &e.Answer)
		}
		if e.found {
			atomic.StoreUint64(e.t.word(e.at), e.next[0])
		}
	case !e.found:
		e.k, e.fresh, _ = e.k.StepFrom(e.k, e.fresh, req, &e.Answer)
	case !e.logged:
		e.k.Step(e.t.state(e.at), req, &e.Answer)
	default:
		entry := &e.ls.slots[e.slot]
		e.ls.step(entry, e.k, req, &e.Answer)
	}
	e.enter()
}

// refuse answers the request, and gives the state up. Only logs note denials.
func (e *Asked) refuse(req *kernel.Request, notes bool) {
	switch {
	case e.word != nil:
		e.next[0] = e.old
		e.k.Refuse(e.next[:], req, false, &e.Answer)
		e.disown()
	case !e.found:
		e.fresh, _ = e.k.Refuse(e.fresh, req, notes, &e.Answer)
	case !e.logged:
		e.k.Refuse(e.t.state(e.at), req, false, &e.Answer)
	default:
		entry := &e.ls.slots[e.slot]
		by, st, _ := e.k.RefuseFrom(e.ls.kernel(entry), e.ls.state(entry), req, notes, &e.Answer)
		e.ls.ended += uint64(e.Answer.Ended)
		e.ls.setKernel(entry, by)
		e.ls.set(entry, st)
	}
	e.enter()
}

// enter inserts the key if it has a place.
func (e *Asked) enter() {
	switch {
	case !e.entered:
		return
	case e.logged:
		i, _ := e.ls.find(e.id)
		st := e.fresh
		if room, lacks := e.ls.blank(e.k.Base(), e.k != e.k.Base()); lacks == 0 && len(st) <= cap(room) {
			st = room[:len(e.fresh)]
			copy(st, e.fresh)
		}
		e.ls.insert(i, e.id, e.k)
		e.ls.set(&e.ls.slots[i], st)
		e.ls.inserts++
	default:
		p, _ := e.t.find(e.id)
		if e.word != nil {
			atomic.StoreUint64(e.t.word(p), e.next[0])
		} else {
			copy(e.t.state(p), e.fresh)
		}
		e.sh.takeLocked(e.t, p, e.id, e.Limit.number)
		e.sh.inserts++
	}
	e.store().keepTime(e.Clock)
}
