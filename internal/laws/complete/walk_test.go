package complete_test

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

// A small limit is a kernel, and what it must be like.
type small struct {
	kernel.Kernel
	definition

	// How long an instant of the definition lasts; 0 is 1 ns. Windows of a calendar are too long to be
	// walked nanosecond by nanosecond.
	lasts   time.Duration
	unit    int // in which a bucket counts time: so many are a tick; 0 if it is no bucket
	grid    int // windows begin at multiples of it; 0 if at any instant
	memory  int // for how many ticks an instant in a state may make a difference
	segment int // if states have numbers of segments, how long one is
}

// lasting returns how many ticks of the kernel an instant of the definition lasts.
func (s *small) lasting() int64 { return max(1, int64(s.lasts)) }

// duration returns how long instants of the definition last.
func (s *small) duration(instants int) time.Duration {
	return time.Duration(int64(instants) * s.lasting())
}

// A pair is a state of the kernel, and what the definition has at the same instant.
type pair struct {
	path
	st  []uint64
	def definition
}

// A walk goes through all pairs of a limit to which any history leads.
type walk struct {
	*testing.T
	namer
	frontier[*pair]
	answers int
}

// run walks, and returns how many pairs there are.
func (w *walk) run() int {
	w.Helper()
	for phase := range max(1, w.grid) {
		w.add(&pair{path: path{now: phase}, st: w.machine.NewState(), def: w.definition})
	}
	for p, ok := w.next(); ok; p, ok = w.next() {
		w.compare(p)
		require.Less(w, len(w.seen), mostStates, "%T: is a state named wrongly?", w.Kernel)
	}
	return len(w.seen)
}

// add goes on to a pair, unless an equal one was there.
func (w *walk) add(p *pair) {
	st := w.machine.Pack(slices.Clone(p.st))
	w.frontier.add(w.name(p.def.key(p.now), &p.path, st, nil), p)
}

// A namer names the states of a small limit.
type namer struct {
	machine *step.Machine
	small
	base int64 // the instant 0 of the definition
}

// name names a state by what its definition has, how the walk came there, and its words: an instant
// by how far it is from now, unless it is so long ago that nothing can depend on it, one of ids by
// its place there, and all others as they are. The state itself is carried along, so that a wrong
// name makes a walk incomplete, or endless, and no answer wrong.
func (w *namer) name(has string, to *path, st, ids []uint64) []byte {
	name := append([]byte(has), '|', byte('0'+to.idle), '|')
	name = strconv.AppendInt(name, int64(to.now%max(1, w.grid)), 10)
	for i, x := range st {
		if known, ok := w.nameWord(x, i == 0, to.now, ids, name); ok {
			name = known
			continue
		}
		const bits = 62 // above which words of two limits have bits that no instant has
		flags := strconv.AppendUint(append(name, " bits"...), x>>bits, 10)
		if known, ok := w.nameWord(x%(1<<bits), false, to.now, ids, flags); ok && x>>bits > 0 {
			name = known
			continue
		}
		if word := w.machine.Word(); word != nil {
			for _, x := range word.Widen(x) {
				name, _ = w.nameWord(x, false, to.now, ids, name)
			}
			continue
		}
		name = strconv.AppendUint(append(name, ' '), x, 10)
	}
	return name
}

// nameWord adds the name of a word of a state at an instant, and reports whether it is known what
// the word is.
func (w *namer) nameWord(x uint64, isFirst bool, at int, ids []uint64, name []byte) ([]byte, bool) {
	now, unit, memory := w.instant(at), int64(w.unit), int64(w.memory)
	away, units := int64(x)-now, int64(x)-now*unit
	if away%w.lasting() == 0 {
		away /= w.lasting()
	}
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
func (w *namer) isPast(x, unit int64) bool {
	return w.instant(-horizon)*unit < x && x < w.instant(horizon)*unit
}

// instant returns an instant of the definition as one of the kernel.
func (w *namer) instant(at int) int64 { return w.base + int64(at)*w.lasting() }

// compare compares all answers in a pair, and goes on to what follows.
func (w *walk) compare(p *pair) {
	now, room := kernel.Instant(w.instant(p.now)), p.def.room(p.now)
	left := int64(max(0, room))
	st := func() []uint64 { return slices.Clone(p.st) }

	w.equal(p, left, int64(w.machine.Remaining(st(), now)), "Remaining", 0)
	idle := w.instant(first(p.now, func(t int) bool { return !p.def.counts(t) }))
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
		ready := w.instant(first(p.now, func(t int) bool { return p.def.room(t) >= n }))
		w.equal(p, ready, int64(w.machine.Ready(st(), now, n)), "Ready", n)
		after, granted := w.machine.Take(st(), now, n)
		require.Equal(w, room >= n, granted, "%+v: Take of %d at %d, after\n%s", w.Kernel, n, p.now, &p.path)
		if word != nil {
			decided, also := word.Decide(p.st[0], now, n)
			require.Equal(w, granted, also, "%+v: Decide on %d at %d, after\n%s", w.Kernel, n, p.now, &p.path)
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
		require.Equal(w, p.st, after, "%+v: a denial of %d at %d, after\n%s", w.Kernel, n, p.now, &p.path)
		if room >= 0 && uint64(n) <= w.machine.Chargeable(st(), now, w.machine.Encoding) {
			w.goOn(p, w.machine.Spend(st(), now, n), p.def.take(p.now, n), "charge", n)
		}
	}
	if next, goesOn := p.wait(p.def.counts(p.now)); goesOn {
		w.add(&pair{path: next, st: p.st, def: p.def})
	}
}

// equal compares an answer about n events.
func (w *walk) equal(p *pair, want, got int64, what string, n int) {
	w.answers++
	if want != got {
		require.Equal(w, want, got, "%+v: %s %d at %d, after\n%s", w.Kernel, what, n, p.now, &p.path)
	}
}

// goOn goes on from p to what follows if n events are taken, charged or denied.
func (w *walk) goOn(p *pair, st []uint64, def definition, what string, n int) {
	if w.machine.Word() == nil && !w.machine.Valid(st) { // no store reads a word from elsewhere
		require.Fail(w, "no state", "%+v: %v after %s of %d\n%s", w.Kernel, st, what, n, &p.path)
	}
	w.add(&pair{path: p.after(fmt.Sprint(what, " ", n)), st: st, def: def})
}
