package history

import (
	"cmp"
	"slices"
	"time"
)

// This file knows which events have happened, and compares their number with a bound.

// An event is some events that happen at an instant.
type event struct {
	at uint64 // in nanoseconds since 1970
	n  int
}

// events are those that have happened, or will at their turn.
type events struct {
	taken    []event
	reserved map[string]event // by the name of the reservation
	charged  bool             // whether some have happened that were not granted
}

// happen notes events that are granted at an instant. They may have a name, and then be fewer in
// the end.
func (e *events) happen(name string, at uint64, n int) {
	if name == "" {
		e.taken = append(e.taken, event{at, n})
		return
	}
	if e.reserved == nil {
		e.reserved = map[string]event{}
	}
	e.reserved[name] = event{at, n}
}

// turnOut notes how many events of a reservation have happened, unless the key was reset since.
func (e *events) turnOut(name string, n int) {
	was, known := e.reserved[name]
	if !known {
		return
	}
	e.charged = e.charged || n > was.n
	e.reserved[name] = event{was.at, min(was.n, n)}
}

// compareBound compares the events of each span of time with the bound on them.
func (p *Play) compareBound() {
	if p.Bound == nil || p.charged {
		return
	}
	all := slices.Clone(p.taken)
	for _, e := range p.reserved {
		all = append(all, e)
	}
	all = slices.DeleteFunc(all, func(e event) bool { return e.n == 0 })
	slices.SortFunc(all, func(a, b event) int { return cmp.Compare(a.at, b.at) })
	for first := range all {
		sum := 0
		for last := first; last < len(all); last++ {
			sum += all[last].n
			span := time.Duration(all[last].at - all[first].at)
			if most := p.Bound(span); sum > most {
				p.fail("%d events within %v, until %d, where at most %d may happen",
					sum, span, all[last].at, most)
				return
			}
		}
	}
}
