package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/ends"
	"github.com/ratelimit-go/ratelimit/internal/model"
)

// testExact compares the store with the reference model call by call, for every
// algorithm.
func testExact(s *suite) { subtests(s, Algorithms(), compare) }

// compare compares the store with the reference model.
func compare(s *suite, alg ratelimit.Algorithm) { newComparison(s, alg).run() }

// A comparison makes the same calls to a limiter and to the model.
type comparison struct {
	*suite
	*bench
	alg  ratelimit.Algorithm
	rng  *rand.Rand
	keys []*comparedKey
	span time.Duration // the approximate time until a used key is fresh again
	made int           // reservations and holds so far
	log  []string      // the calls so far
}

type comparedKey struct {
	name  string
	model *model.Key
	last  ratelimit.Decision
	held  []*heldPair
}

// A heldPair is a reservation in the store, which may be a hold, and the same one in the model.
type heldPair struct {
	real  *ratelimit.Reservation
	model *model.Reservation
	held  *model.Held
	n     int
	made  int // how many were made before
}

func newComparison(s *suite, alg ratelimit.Algorithm) *comparison {
	seed := s.seed()
	c := &comparison{
		suite: s,
		bench: s.bench(alg),
		alg:   alg,
		rng:   rand.New(rand.NewPCG(seed, 20260301)),
	}
	c.log = append(c.log, fmt.Sprintf("seed %d, %v", seed, alg))
	probe := model.New(alg, s.Tick)
	c.span = probe.Take(c.now(), probe.Limit()).ResetAfter
	for _, name := range []string{"", "alice", "b\xffb"} {
		c.keys = append(c.keys, &comparedKey{name: name, model: model.New(alg, s.Tick)})
	}
	return c
}

func (c *comparison) now() int64 { return c.clk.Now().UnixNano() }

func (c *comparison) run() {
	for range c.Steps {
		c.advance()
		k := c.keys[c.rng.IntN(len(c.keys))]
		switch c.rng.IntN(20) {
		default:
			c.take(k)
		case 0, 1, 2:
			c.peek(k)
		case 3, 4, 5:
			c.reserve(k)
		case 6, 7, 11, 12:
			c.settle(k)
		case 9, 10:
			c.hold(k)
		case 15:
			c.extend(k)
		case 13:
			// The number is small enough that the states of all algorithms can hold several debts.
			n := 1 + c.rng.IntN(max(1, min(k.model.Limit(), 1<<20)))
			c.logf("Charge(%q, %d)", k.name, n)
			got, err := c.Charge(context.Background(), k.name, n)
			if !errors.Is(err, ratelimit.ErrDebt) {
				c.compare(k.model.Charge(c.now(), n), got, err)
			}
		case 8:
			if c.rng.IntN(10) == 0 {
				c.reset(k)
			}
		}
	}
}

func (c *comparison) logf(format string, args ...any) {
	c.log = append(c.log, fmt.Sprintf(format, args...))
}

// advance moves the clock to a time at which a decision may change, or not at all.
func (c *comparison) advance() {
	k := c.keys[c.rng.IntN(len(c.keys))]
	var d time.Duration
	switch c.rng.IntN(12) {
	default:
		return
	case 0:
		d = c.Tick
	case 1, 2:
		d = k.last.RetryAfter
	case 3:
		d = k.last.RetryAfter - c.Tick
	case 4:
		d = k.last.RetryAfter + c.Tick
	case 5:
		d = k.last.ResetAfter
	case 6, 7:
		d = time.Duration(c.rng.Int64N(int64(c.span)/4 + 1))
	case 8:
		d = time.Duration(c.rng.Int64N(2*int64(c.span) + 1))
	}
	if d <= 0 || d >= 1000*time.Hour {
		return
	}
	var open []int
	for _, k := range c.keys {
		open = append(open, k.model.Holds(c.now()))
	}
	c.clk.Advance(c.roundUp(d))
	c.logf("at %d", c.now())
	for i, k := range c.keys {
		if ended := open[i] - k.model.Holds(c.now()); ended > 0 {
			if _, floats := c.alg.(ratelimit.WarmingUp); floats && ended > 1 {
				// In floating point, the order in which holds end makes a difference.
				c.bounded(k)
				c.reset(k)
			} else {
				c.peek(k)
			}
		}
	}
}

func (c *comparison) peek(k *comparedKey) {
	c.logf("Peek(%q)", k.name)
	got, err := c.Peek(context.Background(), k.name)
	c.compare(k.model.Peek(c.now()), got, err)
}

func (c *comparison) events(k *comparedKey) int {
	limit := k.model.Limit()
	switch c.rng.IntN(10) {
	default:
		return 1
	case 0:
		return 0
	case 1:
		return 1 + c.rng.IntN(max(1, limit))
	case 2:
		return limit
	case 3:
		return max(limit, limit+1) // the limit may be math.MaxInt
	case 4, 5:
		return max(1, k.last.Remaining)
	}
}

func (c *comparison) take(k *comparedKey) {
	n := c.events(k)
	c.logf("Take(%q, %d)", k.name, n)
	got, err := c.Take(context.Background(), k.name, n)
	k.last = k.model.Take(c.now(), n)
	c.compare(k.last, got, err)
}

// newTerms chooses how a hold ends by itself.
func (c *comparison) newTerms() (terms model.Terms, opts []ratelimit.EndOption) {
	terms.For = c.newDuration()
	opts = append(opts, ratelimit.HoldFor(terms.For))
	if c.rng.IntN(3) == 0 {
		terms.GiveBack = true
		opts = append(opts, ratelimit.GiveBack())
	}
	return terms, opts
}

// newDuration chooses how long a hold lasts.
func (c *comparison) newDuration() time.Duration {
	return 1 + time.Duration(c.rng.Int64N(int64(c.span)+1))
}

// onlyHolds reports whether all reservations must be holds, because the algorithm, or its first
// part, is an InFlight.
func (c *comparison) onlyHolds() bool {
	alg := c.alg
	if all, ok := alg.(ratelimit.All); ok {
		alg = all[0]
	}
	_, ok := alg.(ratelimit.InFlight)
	return ok
}

// reserve reserves events, and may hold them.
func (c *comparison) reserve(k *comparedKey) {
	p := &heldPair{n: c.events(k)}
	terms, opts := c.newTerms()
	var due uint64
	var wantErr, err error
	switch {
	case c.onlyHolds() || c.rng.IntN(2) == 0:
		c.logf("Reserve(%q, %d) within, %+v", k.name, p.n, terms)
		due, p.held, wantErr = k.model.HoldWithin(c.now(), p.n, terms, ratelimit.Never)
		within := ends.OfReserve(opts, ratelimit.Within(ratelimit.Never))
		var d ratelimit.Decision
		p.real, d, err = c.Reserve(context.Background(), k.name, p.n, within...)
		if err == nil && !d.Allowed {
			err = wantErr // which one is compared below
		}
	default:
		c.logf("Reserve(%q, %d)", k.name, p.n)
		due, p.model, wantErr = k.model.Reserve(c.now(), p.n, ratelimit.Never)
		var d ratelimit.Decision
		p.real, d, err = c.Reserve(context.Background(), k.name, p.n)
		if err == nil && !d.Allowed {
			err = wantErr // which one is compared below
		}
	}
	if !errors.Is(err, wantErr) || (err == nil) != (p.real != nil) {
		c.differ("error %v", "error %v", wantErr, err)
	}
	if err != nil {
		return
	}
	if want := c.roundUp(time.Duration(due - uint64(c.now()))); p.real.Delay() != want {
		c.differ("delay %v", "delay %v", want, p.real.Delay())
	}
	c.keep(k, p)
}

func (c *comparison) keep(k *comparedKey, p *heldPair) {
	c.made++
	p.made = c.made
	k.held = append(k.held, p)
}

func (c *comparison) hold(k *comparedKey) {
	p := &heldPair{n: c.events(k)}
	terms, opts := c.newTerms()
	c.logf("Hold(%q, %d), %+v", k.name, p.n, terms)
	p.held, k.last = k.model.Hold(c.now(), p.n, terms)
	r, got, err := c.Hold(context.Background(), k.name, p.n, ends.OfHold(opts)...)
	c.compare(k.last, got, err)
	if (r == nil) != (p.held == nil) {
		c.differ("denied: %v", "denied: %v", p.held == nil, r == nil)
	}
	p.real = r
	if r != nil {
		c.keep(k, p)
	}
}

// settle cancels a reservation, or settles a hold.
func (c *comparison) settle(k *comparedKey) {
	if len(k.held) == 0 {
		return
	}
	i := c.rng.IntN(len(k.held))
	p := k.held[i]
	k.held = slices.Delete(k.held, i, i+1)
	n := 0
	if p.held != nil && c.rng.IntN(2) == 0 {
		n = c.rng.IntN(min(p.n, 1<<20) + 3)
	}
	c.logf("settlement of number %d, of %d, for %d", p.made, p.n, n)
	switch {
	case p.held == nil:
		p.real.Cancel()
		k.model.Cancel(c.now(), p.model)
	case n == 0:
		p.real.Cancel()
		k.model.Settle(c.now(), p.held, 0)
	default:
		got, err := p.real.Settle(context.Background(), n)
		if errors.Is(err, ratelimit.ErrDebt) {
			return
		}
		c.compare(k.model.Settle(c.now(), p.held, n), got, err)
	}
	c.peek(k)
}

// bounded compares a key whose store may grant less than the model, but no more.
func (c *comparison) bounded(k *comparedKey) {
	got, err := c.Peek(context.Background(), k.name)
	if want := k.model.Peek(c.now()); err != nil || got.Remaining > want.Remaining ||
		got.RetryAfter < want.RetryAfter {
		c.differ("no more than %+v", "%+v", want, got)
	}
}

func (c *comparison) extend(k *comparedKey) {
	if len(k.held) == 0 {
		return
	}
	p := k.held[c.rng.IntN(len(k.held))]
	d := c.newDuration()
	c.logf("Extend(%q, %d) of number %d", k.name, d, p.made)
	var want error
	if p.held != nil && !k.model.Extend(c.now(), p.held, d) && p.real.Token() != "" {
		want = ratelimit.ErrEnded
	}
	if err := p.real.Extend(context.Background(), d); !errors.Is(err, want) {
		c.differ("error %v", "error %v", want, err)
	}
}

func (c *comparison) reset(k *comparedKey) {
	c.logf("Reset(%q)", k.name)
	if err := c.Reset(context.Background(), k.name); err != nil {
		c.Fatalf("the store failed: %v", err)
	}
	*k = comparedKey{name: k.name, model: model.New(c.alg, c.Tick)}
}

// compare fails the test if the decisions differ once the model's durations are rounded up to
// ticks.
func (c *comparison) compare(want, got ratelimit.Decision, err error) {
	if err != nil {
		c.Fatalf("the store failed: %v", err)
	}
	want.RetryAfter = c.roundUp(want.RetryAfter)
	want.ResetAfter = c.roundUp(want.ResetAfter)
	want.Delay = c.roundUp(want.Delay)
	if _, ok := c.alg.(ratelimit.WarmingUp); ok {
		// WarmingUp is computed in floating point, and the model is not.
		want.RetryAfter = c.unlessNear(want.RetryAfter, got.RetryAfter)
		want.ResetAfter = c.unlessNear(want.ResetAfter, got.ResetAfter)
	}
	if got != want {
		c.differ("%+v", "%+v", want, got)
	}
}

// unlessNear returns want, or got if the two differ by at most a tick.
func (c *comparison) unlessNear(want, got time.Duration) time.Duration {
	if (want - got).Abs() <= c.Tick {
		return got
	}
	return want
}

func (c *comparison) differ(wantFormat, gotFormat string, want, got any) {
	calls := strings.Join(c.log, "\n\t")
	c.broken("after\n\t%s\nwant "+wantFormat+"\n got "+gotFormat, calls, want, got)
}
