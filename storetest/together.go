package storetest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// testTogether decides on keys of several limiters with TakeAll and HoldAll, by one caller and by
// many at once.
func testTogether(s *suite) {
	algorithms := Algorithms()
	names := slices.Sorted(maps.Keys(algorithms))
	names = slices.DeleteFunc(names, func(name string) bool {
		return countsDenied(algorithms[name])
	})
	rounds := make(map[string][jointKeys]ratelimit.Algorithm)
	rng := rand.New(rand.NewPCG(1, 20261122))
	for left := s.Steps; left > 0; left -= 20 {
		var algs [jointKeys]ratelimit.Algorithm
		for i := range algs {
			algs[i] = algorithms[names[rng.IntN(len(names))]]
		}
		rounds[fmt.Sprint("round ", len(rounds))] = algs
	}
	subtests(s, rounds, (*suite).takeTogether)
	s.contendTogether()
}

// takeTogether makes requests of several keys together on one store. If all of these keys grant, it
// makes the same requests of one key after the other on another store.
func (s *suite) takeTogether(algs [jointKeys]ratelimit.Algorithm) {
	j := newJointComparison(s, algs)
	for range 20 {
		r := j.newRequest()
		granted := j.grants(&r)
		d := j.send(&r)
		if d.Allowed != granted || d.Allowed == (d.RetryAfter > 0) {
			s.broken("%+v: TakeAll of %v, for %v, decides %+v; that all grant them now is %v",
				algs, r.takes, r.keys, d, granted)
		}
		j.takeSingly(&r, granted)
		j.compare(&r, granted)
		j.advance(&r, granted, d.RetryAfter)
	}
}

// jointKeys is the number of limiters of a jointComparison. Each of them has one key.
const jointKeys = 3

// A jointComparison makes the same requests with TakeAll on one store and with Take on another.
type jointComparison struct {
	*suite
	algs     [jointKeys]ratelimit.Algorithm
	rng      *rand.Rand
	together [jointKeys]*bench // on one store, whose keys are decided on together
	single   [jointKeys]*bench // on another store, whose keys are decided on one by one
	span     time.Duration     // the approximate time until used keys are fresh again
}

// A jointRequest asks for events of several keys at once.
type jointRequest struct {
	n      int   // events of each bound that has no number of its own
	keys   []int // the limiters, in any order, and some of them twice
	bounds []ratelimit.Bound
	takes  [jointKeys]int // the events of each key in all
}

func newJointComparison(s *suite, algs [jointKeys]ratelimit.Algorithm) *jointComparison {
	return &jointComparison{
		suite:    s,
		algs:     algs,
		rng:      rand.New(rand.NewPCG(s.seed(), 20261122)),
		together: s.benchesOn(algs),
		single:   s.benchesOn(algs),
		span:     time.Second,
	}
}

// benchesOn returns limiters with the same store and the same clock.
func (s *suite) benchesOn(algs [jointKeys]ratelimit.Algorithm) (benches [jointKeys]*bench) {
	benches[0] = s.bench(algs[0], ratelimit.WithName("0"))
	clk, store := benches[0].clk, benches[0].store
	for i := 1; i < len(algs); i++ {
		l := s.limiter(benches[0], algs[i], ratelimit.WithName(fmt.Sprint(i)))
		benches[i] = &bench{l, clk, store}
	}
	return benches
}

// newRequest chooses two or three keys, and the number of events to request of each.
func (j *jointComparison) newRequest() jointRequest {
	r := jointRequest{keys: make([]int, 2+j.rng.IntN(2)), n: j.rng.IntN(4)}
	for i := range r.keys {
		key := j.rng.IntN(jointKeys)
		bound, n := ratelimit.For(j.together[key].Limiter, "k"), r.n
		if j.rng.IntN(3) == 0 {
			n = j.rng.IntN(4)
			bound = bound.N(n)
		}
		r.keys[i] = key
		r.bounds = append(r.bounds, bound)
		r.takes[key] += n
	}
	return r
}

// grants reports whether each key alone would grant its part of r now.
func (j *jointComparison) grants(r *jointRequest) bool {
	granted := true
	for i, n := range r.takes {
		granted = granted && j.peek(j.single[i], "k").Remaining >= n
	}
	return granted
}

// send makes the request with HoldAll. It may then settle the hold for 0 events, and may then make
// the request again with TakeAll. If it settles the hold and does not make the request again, the
// request takes nothing.
func (j *jointComparison) send(r *jointRequest) ratelimit.Decision {
	held, d, err := ratelimit.HoldAll(ctx, r.n, r.bounds...)
	j.succeeded(err)
	if j.rng.IntN(2) == 0 && held != nil {
		_, err = held.Settle(ctx, 0)
		j.succeeded(err)
		if j.rng.IntN(2) == 0 {
			return j.decided(ratelimit.TakeAll(ctx, r.n, r.bounds...))
		}
		r.takes = [jointKeys]int{}
	}
	return d
}

// takeSingly takes the events of r from one key after the other, if they were granted together.
func (j *jointComparison) takeSingly(r *jointRequest, granted bool) {
	if !granted {
		return
	}
	for i, n := range r.takes {
		j.take(j.single[i], "k", n)
	}
}

// compare checks that each key is the same on both stores.
func (j *jointComparison) compare(r *jointRequest, granted bool) {
	for i := range j.algs {
		got, want := j.peek(j.together[i], "k"), j.peek(j.single[i], "k")
		if got != want {
			j.broken("%+v: after TakeAll of %v, for %v, which was granted: %v, key %d is\n%+v\n"+
				"and after single requests\n%+v", j.algs, r.takes, r.keys, granted, i, got, want)
		}
		j.span = max(j.span, min(want.ResetAfter, time.Hour))
	}
}

// advance moves both clocks. If a request was denied, and would be granted before the time that was
// chosen, the clocks stop one tick before that: the request is still denied then.
func (j *jointComparison) advance(r *jointRequest, granted bool, retryAfter time.Duration) {
	d := j.roundUp(time.Duration(j.rng.Int64N(int64(j.span) / 2)))
	stillDenied := !granted && j.Tick < retryAfter && retryAfter < d
	if stillDenied {
		d = retryAfter - j.Tick
	}
	j.together[0].clk.Advance(d)
	j.single[0].clk.Advance(d)
	if stillDenied && j.decided(ratelimit.TakeAll(ctx, r.n, r.bounds...)).Allowed {
		j.broken("%+v: TakeAll of %v, for %v, is allowed %v before RetryAfter, %v",
			j.algs, r.takes, r.keys, j.Tick, retryAfter)
	}
}

// contendTogether has many callers take overlapping sets of keys, in any order. It checks that each
// key has spent the events that were granted.
func (s *suite) contendTogether() {
	first := ratelimit.FixedWindow{Limit: 150, Window: 24 * time.Hour}
	second := ratelimit.SlidingLog{Limit: 100, Window: time.Hour}
	third := ratelimit.FixedWindow{Limit: 200, Window: 24 * time.Hour}
	b := s.bench(first, ratelimit.WithName("0"))
	keys := []ratelimit.Bound{
		ratelimit.For(b.Limiter, "a"),
		ratelimit.For(s.limiter(b, second, ratelimit.WithName("1")), "b"),
		ratelimit.For(s.limiter(b, third, ratelimit.WithName("2")), "c"),
	}
	total := 0
	for _, order := range [][]int{{0, 1}, {2, 1, 0}, {1, 2}} {
		var of []ratelimit.Bound
		for _, i := range order {
			of = append(of, keys[i])
		}
		granted := contend(goroutines, tries, func() bool {
			d, err := ratelimit.TakeAll(ctx, 1, of...)
			return err == nil && d.Allowed
		})
		total += granted
	}
	if total != 100 {
		s.broken("%d of 100 were granted to callers of several keys", total)
	}
	d := s.peek(keys[1].Limiter(), keys[1].Key())
	if d.Remaining != 0 {
		s.broken("100 of 100 were granted, but then Peek returns %+v", d)
	}
}
