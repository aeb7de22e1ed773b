package step

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

var encodings = map[string]kernel.Encoding{
	"in memory": kernel.InMemory,
	"varying":   kernel.InMemory.Varying(),
	"portable":  {Tick: 1000, Portable: true, Varies: true},
}

// holdKernels has kernels whose holds are settled exactly: of limits of about ten, and a few seconds.
func holdKernels(t *testing.T, enc kernel.Encoding) map[string]*Machine {
	s := second / enc.Tick
	bucket := func(k kernel.Kernel, err error) kernel.Kernel {
		require.NoError(t, err)
		return k
	}
	parts := map[string]func() kernel.Kernel{
		"token":    func() kernel.Kernel { return bucket(kernel.NewTokenBucket(10, time.Second, time.Second, 10, enc, "")) },
		"sevenths": func() kernel.Kernel { return bucket(kernel.NewTokenBucket(7, time.Second, time.Second, 10, enc, "")) },
		"leaky":    func() kernel.Kernel { return bucket(kernel.NewLeakyBucket(3, time.Second, time.Second, 10, enc, "")) },
		"interval": func() kernel.Kernel { return kernel.NewIntervalBucket(10, 3, s) },
		"fixed":    func() kernel.Kernel { return kernel.NewFixedWindow(10, s, true, enc) },
		"first":    func() kernel.Kernel { return kernel.NewFixedWindow(10, s, false, enc) },
		"pair":     func() kernel.Kernel { return kernel.NewSlidingWindow(10, 1, s, enc.Varying()) },
		"sliding":  func() kernel.Kernel { return kernel.NewSlidingWindow(10, 3, s/2, enc) },
		"rolling":  func() kernel.Kernel { return kernel.NewRollingWindow(12, 7, 3, s/2) },
		"log":      func() kernel.Kernel { return kernel.NewSlidingLog(10, s, false) },
		"inflight": func() kernel.Kernel { return kernel.NewInFlight(10, s) },
	}
	kernels := make(map[string]*Machine)
	for name, k := range parts {
		kernels[name] = NewMachine(k(), enc)
	}
	for _, names := range [][]string{
		{"token", "fixed", "log"},
		{"interval", "first", "rolling"},
		{"inflight", "sevenths"},
		{"leaky", "pair", "inflight", "interval"},
	} {
		var all []kernel.Kernel
		for _, name := range names {
			all = append(all, parts[name]())
		}
		kernels[fmt.Sprint(names)] = NewMachine(NewAll(all, enc), enc)
	}
	return kernels
}

// A past is what a part has granted, with what is known by now of how many events happened.
type past struct {
	part   kernel.Kernel
	kind   string         // the type of the kernel
	second kernel.Instant // in ticks
	grants []pastGrant
	begun  kernel.Instant // when the present window, or the grid of refills, began; in an InFlight, the frontier
}

// The kinds of part whose state says when something began, and so is not what Spend makes of the
// grants one after the other. They have the parameters that holdKernels gives them.
const (
	firstWindow  = "fixed"          // if it drifts: a window of a second
	refills      = "intervalBucket" // of three tokens a second
	flights      = "inFlight"       // with a timeout of a second
	log          = "eventLog"
	refillTokens = 3
)

func newPast(part kernel.Kernel, enc kernel.Encoding) *past {
	return &past{part: part, kind: NewMachine(part, enc).Kind(), second: second / enc.Tick}
}

// is reports whether the part is of a kind whose windows or refills begin with an event, or InFlight.
func (p *past) is(kind string) bool {
	return p.kind == kind && (kind != firstWindow || p.part.Drifts())
}

type pastGrant struct {
	id     uint64
	at     kernel.Instant
	n      int
	ends   kernel.Instant // in an InFlight
	excess bool           // whether more happened than was held
}

// grant records a grant.
func (p *past) grant(g pastGrant) {
	switch {
	case p.is(firstWindow) && (p.events() == 0 || g.at >= p.begun+p.second),
		p.is(refills) && p.state(g.at)[1] == 0:
		p.begun, p.grants = g.at, nil
	case p.is(flights):
		p.begun = max(p.begun, g.at)
	}
	p.grants = append(p.grants, g)
}

func (p *past) events() (sum int) {
	for _, g := range p.grants {
		sum += g.n
	}
	return sum
}

// amend says that n events of a grant happened.
func (p *past) amend(id uint64, n int) {
	for i := range p.grants {
		g := &p.grants[i]
		if g.id != id {
			continue
		}
		g.n = n
		if p.is(flights) {
			g.n = 0
		}
	}
	if p.is(flights) {
		var last kernel.Instant
		for _, g := range p.grants {
			if g.n > 0 {
				last = max(last, g.at)
			}
		}
		p.begun = min(p.begun, last)
	}
}

// state returns the state that the grants leave if they are made again, as they happened.
func (p *past) state(now kernel.Instant) []uint64 {
	switch {
	case p.is(firstWindow):
		return []uint64{p.begun, uint64(p.events())}
	case p.is(refills):
		return p.refilled(now)
	case p.is(flights):
		return p.logged()
	}
	st := make([]uint64, p.part.Width())
	for _, g := range p.grants {
		if g.n > 0 || p.kind != log {
			st = p.part.Spend(st, g.at, g.n)
		}
	}
	return st
}

// refilled returns the state of a bucket with refills: when the last one came, and what is missing.
func (p *past) refilled(now kernel.Instant) []uint64 {
	var missing, came uint64
	refill := func(at kernel.Instant) {
		if periods := (at - p.begun) / p.second; at >= p.begun && periods > came {
			missing -= min(missing, (periods-came)*refillTokens)
			came = periods
		}
	}
	for _, g := range p.grants {
		refill(g.at)
		missing += uint64(g.n)
	}
	refill(now)
	return []uint64{p.begun + came*p.second, missing}
}

// logged returns a log in which each event lies a timeout before the end of its hold.
func (p *past) logged() (st []uint64) {
	counts := make(map[kernel.Instant]uint64)
	sum := uint64(0)
	for _, g := range p.grants {
		counts[g.ends-p.second] += uint64(g.n)
		sum += uint64(g.n)
	}
	if sum == 0 {
		return nil
	}
	const header, many = 3, 1 << 63
	st = []uint64{sum, header, p.begun}
	for _, at := range slices.Sorted(maps.Keys(counts)) {
		switch n := counts[at]; n {
		case 0:
		case 1:
			st = append(st, at)
		default:
			st = append(st, at, n|many)
		}
	}
	return st
}

// A replay compares a key that has open holds with its past.
type replay struct {
	t     *testing.T
	rng   *rand.Rand
	c     *Machine
	by    *Machine
	st    State
	now   kernel.Instant // in ticks
	parts []*past
	open  map[uint64]*openHold
	last  uint64 // ID
	ended int    // holds that no request has ended yet
	trace []string
}

type openHold struct {
	end  kernel.Instant
	n    int
	back bool
}

func newReplay(t *testing.T, c *Machine, seed uint64) *replay {
	r := &replay{t: t, rng: rand.New(rand.NewPCG(seed, 0)), c: c, by: c, st: PlainState(c.NewState()), now: begun / c.Tick, open: map[uint64]*openHold{}}
	for _, leaf := range c.leaves {
		r.parts = append(r.parts, newPast(leaf, c.Encoding))
	}
	return r
}

func (r *replay) at() *Reading { return &Reading{Now: r.now * r.c.Tick, Own: true} }

// do applies a request.
func (r *replay) do(req Request) (a Answer) {
	req.Fixed, req.MaxWait = r.at(), 3*time.Second
	var changed bool
	before := r.st.Clone()
	by := r.by
	r.by, r.st, changed = r.c.StepFrom(r.by, r.st, &req, &a)
	r.trace = append(r.trace, fmt.Sprintf("%d: op %d, n %d, %+v: %v held %v ended %d", r.now-begun/r.c.Tick, req.Op,
		req.N, req.Hold, a.Allowed, a.Held, a.Ended))
	if req.Op == OpPeek {
		require.False(r.t, changed)
		require.Equal(r.t, before, r.st)
	}
	if !changed && before.Form == r.st.Form && len(before.Words) == len(r.st.Words) {
		require.Same(r.t, by, r.by)
	}
	return a
}

// grant records what was granted.
func (r *replay) grant(g pastGrant) {
	for _, p := range r.parts {
		own := g
		if p.is(flights) {
			if g.excess {
				continue
			}
			if g.ends == 0 {
				own.ends = g.at + p.second
			}
		}
		p.grant(own)
	}
}

// end ends the holds that are due in the past.
func (r *replay) end() (ended int) {
	for id, h := range r.open {
		if h.end > r.now {
			continue
		}
		ended++
		delete(r.open, id)
		for _, p := range r.parts {
			if h.back || p.part.Releases() {
				p.amend(id, 0)
			}
		}
	}
	return ended
}

// amend says that n events of a hold happened.
func (r *replay) amend(id uint64, n int) {
	for _, p := range r.parts {
		p.amend(id, n)
	}
	delete(r.open, id)
}

// some returns an open hold.
func (r *replay) some() uint64 {
	ids := slices.Sorted(maps.Keys(r.open))
	if len(ids) == 0 || r.rng.IntN(20) == 0 {
		return r.last + 1000
	}
	return ids[r.rng.IntN(len(ids))]
}

func (r *replay) handle() Handle {
	r.last += 2
	return Handle{ID: r.last - 1, For: time.Duration(1+r.rng.Uint64N(3*second/r.c.Tick)) * time.Duration(r.c.Tick), Back: r.rng.IntN(2) == 0}
}

// step makes a random request, and checks its answer, and the state.
func (r *replay) step() {
	tick := r.c.Tick
	if r.rng.IntN(3) > 0 {
		r.now += r.rng.Uint64N(second / tick / 4)
	} else if r.rng.IntN(20) == 0 {
		r.now += r.rng.Uint64N(3 * second / tick)
	}
	r.ended += r.end()
	n := 1 + r.rng.IntN(5)
	var a Answer
	switch op := r.rng.IntN(11); {
	case op < 2:
		if a = r.do(Request{Op: OpTake, N: n}); a.Allowed {
			r.grant(pastGrant{at: r.now, n: n})
		}
	case op < 6:
		h := r.handle()
		a = r.do(Request{Op: OpHold, N: n, Hold: h})
		require.Equal(r.t, a.Allowed, a.Held)
		if a.Held {
			end := a.Due/tick + uint64(h.For)/tick
			r.open[h.ID] = &openHold{end, n, h.Back}
			r.grant(pastGrant{id: h.ID, at: r.now, n: n, ends: end})
		}
	case op < 9:
		id := r.some()
		h, ok := r.open[id]
		if !ok {
			of := n - r.rng.IntN(n+1)
			a = r.do(Request{Op: OpSettle, N: n, Of: of, Hold: Handle{ID: id}})
			require.False(r.t, a.Held)
			if n > of {
				r.grant(pastGrant{at: r.now, n: n - of, excess: true})
			}
			break
		}
		used := r.rng.IntN(h.n + 1)
		if r.rng.IntN(4) == 0 {
			used += h.n
		}
		a = r.do(Request{Op: OpSettle, N: used, Hold: Handle{ID: id}})
		require.True(r.t, a.Held)
		r.amend(id, min(used, h.n))
		if used > h.n {
			r.grant(pastGrant{at: r.now, n: used - h.n, excess: true})
		}
	case op == 9:
		id, by := r.some(), r.handle().For
		a = r.do(Request{Op: OpExtend, Hold: Handle{ID: id, For: by}})
		h, ok := r.open[id]
		if require.Equal(r.t, ok, a.Held); ok {
			h.end = r.now + uint64(by)/tick
			for _, p := range r.parts {
				for i := range p.grants {
					if p.grants[i].id == id {
						p.grants[i].ends = h.end
					}
				}
			}
		}
	default:
		a = r.do(Request{Op: OpCharge, N: n})
		r.grant(pastGrant{at: r.now, n: n})
	}
	require.Equal(r.t, r.ended, a.Ended, "%v", r.trace)
	r.ended = 0
	r.check()
}

// check compares the state with one that the past leaves.
func (r *replay) check() {
	require.Equal(r.t, len(r.open) > 0, !r.st.IsPlain())
	if r.c.Varies {
		require.True(r.t, r.by.ValidIn(r.st), "%v\n%v", r.trace, r.st)
	}
	if r.c.Portable {
		for _, word := range r.st.Words {
			require.Less(r.t, word&^(1<<63), uint64(1<<53))
		}
	}
	var states [][]uint64
	for _, p := range r.parts {
		states = append(states, p.state(r.now))
	}
	st := states[0]
	if r.c.parts != nil {
		st = joined(r.c.parts.parts, states)
	}
	for _, later := range []kernel.Instant{0, r.rng.Uint64N(second / r.c.Tick)} {
		now := r.now + later
		if later > 0 && slices.ContainsFunc(slices.Collect(maps.Values(r.open)), func(h *openHold) bool { return h.end <= now }) {
			continue
		}
		for n := range 6 {
			req := Request{Op: OpTake, N: n, Fixed: &Reading{Now: now * r.c.Tick, Own: true}}
			if n == 0 {
				req.Op = OpPeek
			}
			var got, want Answer
			r.c.StepFrom(r.by, r.st.Clone(), &req, &got)
			r.c.Step(slices.Clone(st), &req, &want)
			got.Idle, got.Ends = 0, 0
			if r.givesBack() && got.RetryAfter <= want.RetryAfter { // internal/model has this law
				want.RetryAfter = got.RetryAfter
			}
			require.Equal(r.t, want, got, "%v\nat %d: %d events\n%v\n%v", r.trace, now-begun/r.c.Tick, n, r.st, st)
		}
	}
}

// givesBack reports whether an open hold gives its events back by itself.
func (r *replay) givesBack() bool {
	for _, h := range r.open {
		if h.back {
			return true
		}
	}
	return false
}

// TestHolds_Replay: a key with open holds decides as if only what is known to have happened had been
// taken, when it was.
func TestHolds_Replay(t *testing.T) {
	for name, enc := range encodings {
		for kind, c := range holdKernels(t, enc) {
			t.Run(name+"/"+kind, func(t *testing.T) {
				for seed := range budget.Seeds(t, budget.Histories(12, 40)) {
					r := newReplay(t, c, seed)
					for range 40 {
						r.step()
					}
				}
			})
		}
	}
}
