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
	log  []string      // the calls so far
}

type comparedKey struct {
	name  string
	model *model.Key
	last  ratelimit.Decision
	held  []heldPair
	holds []heldEvents
}

// heldEvents are a hold in the store and the same one in the model.
type heldEvents struct {
	real  *ratelimit.Reservation
	model *model.Held
	n     int
}

// A heldPair is a reservation in the store and the same one in the model.
type heldPair struct {
	real  *ratelimit.Reservation
	model *model.Reservation
}

func newComparison(s *suite, alg ratelimit.Algorithm) *comparison {
	seed := s.seed()
	c := &comparison{
		suite: s,
		bench: s.bench(alg),
		alg:   alg,
		rng:   rand.New(rand.NewPCG(seed, 20260301)),
	}
	c.log = append(c.log, fmt.Sprintf("seed %d, %T%+v", seed, alg, alg))
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
			c.logf("Peek(%q)", k.name)
			got, err := c.Peek(context.Background(), k.name)
			c.compare(k.model.Peek(c.now()), got, err)
		case 3, 4, 5:
			c.reserve(k)
		case 6, 7:
			c.cancel(k)
		case 9, 10:
			c.hold(k)
		case 11, 12:
			c.settle(k)
		case 13:
			n := 1 + c.rng.IntN(max(1, min(k.model.Limit(), 1<<20))) // a debt that every state can hold for a while
			c.logf("Charge(%q, %d)", k.name, n)
			got, err := c.Charge(context.Background(), k.name, n)
			if !errors.Is(err, ratelimit.ErrDebt) {
				c.compare(k.model.Charge(c.now(), n), got, err)
			}
		case 14:
			n := c.events(k)
			c.logf("TakeUpTo(%q, %d)", k.name, n)
			granted, got, err := c.TakeUpTo(context.Background(), k.name, n)
			var want int
			want, k.last = k.model.TakeUpTo(c.now(), n)
			c.compare(k.last, got, err)
			if granted != want {
				c.differ("%d granted", "%d granted", want, granted)
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
	if d > 0 && d < 1000*time.Hour {
		c.clk.Advance(c.roundUp(d))
		c.logf("at %d", c.now())
	}
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

func (c *comparison) reserve(k *comparedKey) {
	n := c.events(k)
	c.logf("Reserve(%q, %d)", k.name, n)
	toSettle := c.rng.IntN(2) == 0 // like a hold
	var (
		due     uint64
		held    *model.Reservation
		hold    *model.Held
		wantErr error
	)
	if toSettle {
		due, hold, wantErr = k.model.HoldWithin(c.now(), n, model.Terms{}, ratelimit.Never)
	} else {
		due, held, wantErr = k.model.Reserve(c.now(), n, ratelimit.Never)
	}
	got, err := c.Reserve(context.Background(), k.name, n)
	if !errors.Is(err, wantErr) {
		c.differ("error %v", "error %v", wantErr, err)
	}
	if err != nil {
		return
	}
	if want := c.roundUp(time.Duration(due - uint64(c.now()))); got.Delay() != want {
		c.differ("delay %v", "delay %v", want, got.Delay())
	}
	if toSettle {
		k.holds = append(k.holds, heldEvents{got, hold, n})
		return
	}
	k.held = append(k.held, heldPair{got, held})
}

func (c *comparison) cancel(k *comparedKey) {
	if len(k.held) == 0 {
		return
	}
	i := c.rng.IntN(len(k.held))
	c.logf("Cancel(%q), reservation %d of %d", k.name, i, len(k.held))
	k.held[i].real.Cancel()
	k.model.Cancel(c.now(), k.held[i].model)
	k.held = slices.Delete(k.held, i, i+1)
}

func (c *comparison) hold(k *comparedKey) {
	n := c.events(k)
	c.logf("Hold(%q, %d)", k.name, n)
	var held *model.Held
	held, k.last = k.model.Hold(c.now(), n, model.Terms{})
	r, got, err := c.Hold(context.Background(), k.name, n)
	c.compare(k.last, got, err)
	if (r == nil) != (held == nil) {
		c.differ("denied: %v", "denied: %v", held == nil, r == nil)
	}
	if r != nil {
		k.holds = append(k.holds, heldEvents{r, held, n})
	}
}

// settle settles a hold. With reservations ahead, segments and periods give back what they can,
// but then Cancel may leave the key denied until the last turn, unlike that of the model.
func (c *comparison) settle(k *comparedKey) {
	if len(k.holds) == 0 || k.model.Rings() && k.model.Ahead(c.now()) {
		return
	}
	i := c.rng.IntN(len(k.holds))
	h := k.holds[i]
	k.holds = slices.Delete(k.holds, i, i+1)
	n := c.rng.IntN(min(h.n, 1<<20) + 3)
	c.logf("Settle(%q, %d), hold %d, of %d", k.name, n, i, h.n)
	got, err := h.real.Settle(context.Background(), n)
	if !errors.Is(err, ratelimit.ErrDebt) {
		c.compare(k.model.Settle(c.now(), h.model, n), got, err)
	}
}

func (c *comparison) reset(k *comparedKey) {
	c.logf("Reset(%q)", k.name)
	if err := c.Reset(context.Background(), k.name); err != nil {
		c.Fatalf("the store failed: %v", err)
	}
	*k = comparedKey{name: k.name, model: model.New(c.alg, c.Tick)}
}

// compare fails the test unless the decisions are equal when durations are rounded up to
// ticks.
func (c *comparison) compare(want, got ratelimit.Decision, err error) {
	if err != nil {
		c.Fatalf("the store failed: %v", err)
	}
	want.RetryAfter = c.roundUp(want.RetryAfter)
	want.ResetAfter = c.roundUp(want.ResetAfter)
	want.Delay = c.roundUp(want.Delay)
	if _, ok := c.alg.(ratelimit.WarmingUp); ok {
		// It uses floating point, and the model does not.
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
	c.broken("after\n\t%s\nwant "+wantFormat+"\n got "+gotFormat, strings.Join(c.log, "\n\t"), want, got)
}
