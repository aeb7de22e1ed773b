package complete_test

import (
	"fmt"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

// A small limit is a kernel, and what it must be like.
type small struct {
	kernel.Kernel
	definition

	unit    int  // in which a bucket counts time: so many are a tick; 0 if it is no bucket
	grid    int  // windows begin at multiples of it; 0 if at any instant
	memory  int  // for how many ticks an instant in a state may make a difference
	drifts  bool // whether later events may begin a window, so that cancelling them is not walked
	segment int  // if states have numbers of segments, how long one is
}

// A pair is a state of the kernel, and what the definition has at the same instant.
type pair struct {
	st   []uint64
	now  int // after the base of the walk
	def  definition
	idle int   // for how many ticks nothing has counted
	past *pair // before the last step
	step string
}

// trace returns how the pair came about.
func (p *pair) trace() (text string) {
	for ; p.past != nil; p = p.past {
		text = fmt.Sprintf("at %d: %s\n%s", p.past.now, p.step, text)
	}
	return text
}

// A walk goes through all pairs of a limit to which any history leads.
type walk struct {
	*testing.T
	machine *step.Machine
	small
	base    int64 // the instant 0 of the definition
	seen    map[string]bool
	ahead   []*pair
	answers int
}

// mostStates bounds a walk: a name of states that tells equal ones apart runs for ever.
const mostStates = 1 << 17

// run walks, and returns how many pairs there are.
func (w *walk) run() int {
	w.Helper()
	w.seen = make(map[string]bool)
	for phase := range max(1, w.grid) {
		w.add(&pair{st: w.machine.NewState(), now: phase, def: w.definition})
	}
	for len(w.ahead) > 0 {
		p := w.ahead[len(w.ahead)-1]
		w.ahead = w.ahead[:len(w.ahead)-1]
		w.compare(p)
		require.Less(w, len(w.seen), mostStates, "%T: is a state named wrongly?", w.Kernel)
	}
	return len(w.seen)
}

// add goes on to a pair, unless an equal one was there.
func (w *walk) add(p *pair) {
	name := append([]byte(p.def.key(p.now)), '|', byte('0'+p.idle), '|')
	name = w.name(p, strconv.AppendInt(name, int64(p.now%max(1, w.grid)), 10))
	if !w.seen[string(name)] {
		w.seen[string(name)] = true
		w.ahead = append(w.ahead, p)
	}
}

// name names the words of a state: an instant by how far it is from now, unless it is so long ago
// that nothing can depend on it, and all others as they are. The state itself is carried along, so
// that a wrong name makes a walk incomplete, or endless, and no answer wrong.
func (w *walk) name(p *pair, name []byte) []byte {
	return w.nameWords(w.machine.Pack(slices.Clone(p.st)), p.now, nil, name)
}

// nameWords names words of a state at an instant. Those in ids are known by their places there.
func (w *walk) nameWords(st []uint64, at int, ids []uint64, name []byte) []byte {
	for i, x := range st {
		if known, ok := w.nameWord(x, i == 0, at, ids, name); ok {
			name = known
			continue
		}
		if word := w.machine.Word(); word != nil {
			for _, x := range word.Widen(x) {
				name, _ = w.nameWord(x, false, at, ids, name)
			}
			continue
		}
		name = strconv.AppendUint(append(name, ' '), x, 10)
	}
	return name
}

func (w *walk) nameWord(x uint64, isFirst bool, at int, ids []uint64, name []byte) ([]byte, bool) {
	now, unit, memory := w.base+int64(at), int64(w.unit), int64(w.memory)
	away, units := int64(x)-now, int64(x)-now*unit
	segments := int64(1 << 62)
	if w.segment > 0 {
		segments = int64(x) - now/int64(w.segment)
	}
	switch {
	case slices.Contains(ids, x):
		return strconv.AppendInt(append(name, " id"...), int64(slices.Index(ids, x)), 10), true
	case firstID <= x && x < firstID+1<<24:
		return append(name, " gone"...), true
	case !isFirst && x < 1<<20, x == 0:
		return strconv.AppendUint(append(name, ' '), x, 10), true
	case -memory < away && away < horizon:
		return strconv.AppendInt(append(name, " now"...), away, 10), true
	case unit > 0 && -memory*unit < units && units < horizon*unit:
		return strconv.AppendInt(append(name, " units"...), units, 10), true
	case -memory < segments && segments < horizon:
		return strconv.AppendInt(append(name, " segment"...), segments, 10), true
	case w.isPast(int64(x), 1) || w.isPast(int64(x), unit) || w.segment > 0 && w.isPast(int64(x)*int64(w.segment), 1):
		return append(name, " old"...), true
	}
	return strconv.AppendUint(append(name, ' '), x, 10), false
}

// isPast reports whether x is an instant of the walk, in units.
func (w *walk) isPast(x, unit int64) bool {
	return (w.base-horizon)*unit < x && x < (w.base+horizon)*unit
}

// expired is for how many ticks a walk goes on with a state of which nothing counts any more. It is
// that of a new key then, whatever its words are.
const expired = 2

// compare compares all answers in a pair, and goes on to what follows.
func (w *walk) compare(p *pair) {
	now, room := kernel.Instant(w.base+int64(p.now)), p.def.room(p.now)
	left := int64(max(0, room))
	st := func() []uint64 { return slices.Clone(p.st) }

	w.equal(p, left, int64(w.machine.Remaining(st(), now)), "Remaining", 0)
	idle := w.base + int64(first(p.now, func(t int) bool { return !p.def.counts(t) }))
	w.equal(p, idle, int64(max(now, w.machine.Fresh(st()))), "Fresh", 0)
	if q, ok := p.def.(queue); ok {
		w.equal(p, int64(q.delay(p.now)), int64(w.machine.Delay(st(), now)), "Delay", 0)
	}
	word := w.machine.Word()
	if word != nil {
		remaining, fresh := word.Describe(p.st[0], now)
		w.equal(p, left, int64(remaining), "Describe's remaining", 0)
		w.equal(p, idle, int64(max(now, fresh)), "Describe's fresh", 0)
	}
	for n := 1; n <= w.machine.Limit(); n++ {
		ready := w.base + int64(first(p.now, func(t int) bool { return p.def.room(t) >= n }))
		w.equal(p, ready, int64(w.machine.Ready(st(), now, n)), "Ready", n)
		after, granted := w.machine.Take(st(), now, n)
		require.Equal(w, room >= n, granted, "%+v: Take of %d at %d, after\n%s", w.Kernel, n, p.now, p.trace())
		if word != nil {
			decided, also := word.Decide(p.st[0], now, n)
			require.Equal(w, granted, also, "%+v: Decide on %d at %d, after\n%s", w.Kernel, n, p.now, p.trace())
			require.True(w, !also || decided == after[0])
			w.equal(p, ready, int64(word.Await(p.st[0], now, n)), "Await", n)
		}
		if granted {
			w.goOn(p, after, p.def.take(p.now, n), "take", n)
			continue
		}
		if d, ok := p.def.(denialCounter); ok {
			after, _ = w.machine.Refuse(after, now, n, 0)
			w.goOn(p, after, d.deny(p.now, n), "denied", n)
			continue
		}
		require.Equal(w, p.st, after, "%+v: a denial of %d at %d, after\n%s", w.Kernel, n, p.now, p.trace())
		if room >= 0 && uint64(n) <= w.machine.Chargeable(st(), now, w.machine.Encoding) {
			w.goOn(p, w.machine.Spend(st(), now, n), p.def.take(p.now, n), "charge", n)
		}
	}
	next := &pair{st: p.st, now: p.now + 1, def: p.def, past: p, step: "wait 1"}
	if !p.def.counts(p.now) {
		next.idle = p.idle + 1
	}
	if next.idle <= expired {
		w.add(next)
	}
}

// equal compares an answer about n events.
func (w *walk) equal(p *pair, want, got int64, what string, n int) {
	w.answers++
	if want != got {
		require.Equal(w, want, got, "%+v: %s %d at %d, after\n%s", w.Kernel, what, n, p.now, p.trace())
	}
}

// goOn goes on from p to what follows if n events are taken, charged or denied.
func (w *walk) goOn(p *pair, st []uint64, def definition, what string, n int) {
	if w.machine.Word() == nil && !w.machine.Valid(st) { // no store reads a word from elsewhere
		require.Fail(w, "no state", "%+v: %v after %s of %d\n%s", w.Kernel, st, what, n, p.trace())
	}
	w.add(&pair{st: st, now: p.now, def: def, past: p, step: fmt.Sprint(what, " ", n)})
}
