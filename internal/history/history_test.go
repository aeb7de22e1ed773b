package history_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/history"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
)

// everything has each kind of operation, on a bucket of one event a second.
const everything = `
	pass 1.000000001s
	take 3
	allow 1 of "another \"key\"\n"
	upto 9 by 1 of "b"
	peek
	charge 2
	pass 4s
	reserve 1 as h1
	reserve 2 within 2s for 1m0s back as h2
	wait 1 within 0s
	pass 10s
	hold 2 for 1m0s as h3
	await 1 back as h4
	settle h3 for 1
	cancel h4
	extend h2 for 2h0m0s by 1
	take -1
	crowd
	reset
`

// TestText: a history is the same text again once it was read.
func TestText(t *testing.T) {
	const all = everything + `	limit 2
	limit 1 of "a"
	fault damaged for 3 of "a"
	take 3 of "a" with 0 of "b" with 2 of "c" and
	hold 1 as h5 with 1 of "b"
`
	ops, err := history.Parse(all)
	require.NoError(t, err)
	assert.Equal(t, all, "\n"+history.Text(ops))
	for text, want := range map[string]string{
		"grab 3":              `"grab 3": there is no verb "grab"`,
		"take three":          `"take three": strconv.Atoi: parsing "three": invalid syntax`,
		"take 3 quickly":      `"take 3 quickly": the word "quickly" does not belong there`,
		"pass 3":              `time: missing unit in duration "3"`,
		`take 3 of "a`:        `invalid syntax`,
		`take 1 with 2`:       `want the word "of", got ""`,
		`take 3 with "a"`:     `parsing "\"a\"": invalid syntax`,
		"take 1\nsettle h1 x": `"settle h1 x": the word "x" does not belong there`,
	} {
		_, err := history.Parse(text)
		assert.ErrorContains(t, err, want)
	}
}

// setup returns what histories of a bucket are played on. change makes another limiter of the right
// one.
func setup(change func(ratelimit.Limiter) ratelimit.Limiter) *history.Setup {
	s := &history.Setup{Algorithm: ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 5}, Start: time.Unix(1000, 0)}
	s.Open = func() (of []ratelimit.Limiter, _ history.Clock) {
		clk, store := ratelimittest.NewClock(s.Start), new(ratelimit.MemoryStore)
		for range 2 {
			l := ratelimit.Must(ratelimit.New(s.Algorithm, ratelimit.WithClock(clk), ratelimit.WithStore(store), ratelimit.WithName("test")))
			of = append(of, change(l))
		}
		return of, clk
	}
	return s
}

func same(l ratelimit.Limiter) ratelimit.Limiter { return l }

// TestCheck: the answers of a limiter are right.
func TestCheck(t *testing.T) { history.Check(t, setup(same), everything) }

// TestRun: random histories find each limiter that is broken on purpose, and tell of it in a few
// operations.
func TestRun(t *testing.T) {
	for name, tt := range map[string]struct {
		broken func(ratelimit.Limiter) ratelimit.Limiter
		most   int // operations that show it
	}{
		"nothing is denied":         {func(l ratelimit.Limiter) ratelimit.Limiter { return generous{l} }, 2},
		"a hold of two holds one":   {func(l ratelimit.Limiter) ratelimit.Limiter { return stingy{l} }, 1},
		"Peek spends":               {func(l ratelimit.Limiter) ratelimit.Limiter { return spendingPeek{l} }, 3},
		"RetryAfter is too short":   {func(l ratelimit.Limiter) ratelimit.Limiter { return hasty{l} }, 3},
		"fewer than none are taken": {func(l ratelimit.Limiter) ratelimit.Limiter { return careless{l} }, 1},
		"it waits for ever":         {func(l ratelimit.Limiter) ratelimit.Limiter { return waiting{l} }, 1},
		"it panics":                 {func(l ratelimit.Limiter) ratelimit.Limiter { return panicking{l} }, 2},
	} {
		s := setup(tt.broken)
		if name == "it waits for ever" {
			s.Patience = 20 * time.Millisecond
		}
		g := &history.Generator{Choices: history.NewRandom(7, 0), Keys: []string{"", "b"}, Spans: []time.Duration{time.Second, 5 * time.Second}, By: 2}
		p := s.New()
		var ops []history.Op
		var wrong error
		for len(ops) < 3000 && wrong == nil {
			o, ok := g.Next(p)
			require.True(t, ok)
			ops = append(ops, o)
			wrong = p.Do(o)
		}
		require.Error(t, wrong, name)
		short := history.Shrink(ops, func(ops []history.Op) bool { return history.Replay(s, ops) != nil })
		assert.LessOrEqual(t, len(short), tt.most, "%s:\n%s", name, history.Text(short))
		require.Error(t, history.Replay(s, short), name)
		again, err := history.Parse(history.Text(short))
		require.NoError(t, err)
		assert.Equal(t, short, again)
		assert.Contains(t, history.Explain(s, ops, wrong), history.Text(short), name)
		require.NoError(t, history.Replay(setup(same), ops), name)
	}
}

// TestShrink: a short history is one of the first key that a long one had, and of the first names.
func TestShrink(t *testing.T) {
	long, err := history.Parse(`
		pass 5s
		take 4 of "b"
		hold 3 as r7 of "a"
		peek of "b"
		settle r7 for 2 of "a"
	`)
	require.NoError(t, err)
	settled := func(ops []history.Op) bool {
		made, ended := -1, -1
		for i, o := range ops {
			switch o.Verb {
			case history.Hold:
				made = i
			case history.Settle:
				ended = i
			}
		}
		return made >= 0 && ended > made
	}
	assert.Equal(t, "\thold 1 as h1 of \"a\"\n\tsettle h1 for 1 of \"a\"\n", history.Text(history.Shrink(long, settled)))
}

// TestTwins: a difference between two stores is found, and an answer that does not keep what an
// earlier one has told, although it is the same on both.
func TestTwins(t *testing.T) {
	for name, tt := range map[string]struct {
		first, second func(ratelimit.Limiter) ratelimit.Limiter
		after         func(ops []history.Op) error
		want          string
	}{
		"both are right":    {same, same, nil, ""},
		"what is seen then": {same, same, func(ops []history.Op) error { return fmt.Errorf("after %v", ops) }, "after"},
		"one is too soon":   {same, func(l ratelimit.Limiter) ratelimit.Limiter { return hasty{l} }, nil, "store 1 answers"},
		"both are too soon": {func(l ratelimit.Limiter) ratelimit.Limiter { return hasty{l} },
			func(l ratelimit.Limiter) ratelimit.Limiter { return hasty{l} }, nil, "was told to be granted"},
		"one panics": {same, func(l ratelimit.Limiter) ratelimit.Limiter { return panicking{l} }, nil, "panic: a reset"},
	} {
		s := &history.Twins{Start: time.Unix(1000, 0)}
		s.Limits = []ratelimit.Algorithm{
			ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 5},
			ratelimit.TokenBucket{Rate: ratelimit.PerSecond(2), Burst: 5},
		}
		s.Open = func(of func(key string) ratelimit.Algorithm) (on history.OpenTwins) {
			clk := ratelimittest.NewClock(s.Start)
			limits := ratelimit.WithLimits(func(_ context.Context, key string) (ratelimit.Algorithm, error) { return of(key), nil })
			for _, change := range []func(ratelimit.Limiter) ratelimit.Limiter{tt.first, tt.second} {
				l := ratelimit.Must(ratelimit.New(of(""), ratelimit.WithClock(clk), limits))
				on.Stores = append(on.Stores, history.Store{Limiters: []ratelimit.Limiter{change(l)}})
			}
			on.Clock, on.After = clk, tt.after
			return on
		}
		g := &history.Generator{Choices: history.NewRandom(7, 0), Keys: []string{""}, Spans: []time.Duration{time.Second, 5 * time.Second}, Limits: 2}
		_, wrong := history.Try(s, history.AtMost(3000, g.Next))
		if tt.want == "" {
			require.NoError(t, wrong, name)
			continue
		}
		require.ErrorContains(t, wrong, tt.want, name)
	}
}

// TestTogether: operations that are made together, or on several keys, give the answers of the same
// operations one after the other. A store that decides on them in another order is found.
func TestTogether(t *testing.T) {
	inOrder := func(calls []func()) {
		for _, call := range calls {
			call()
		}
	}
	for name, tt := range map[string]struct {
		first  history.Store // without limiters
		broken func(ratelimit.Limiter) ratelimit.Limiter
		want   string
	}{
		"in order":             {history.Store{Together: inOrder}, nil, ""},
		"each in one call":     {history.Store{TakesEach: true}, nil, ""},
		"the last comes first": {history.Store{Together: func(calls []func()) { slices.Reverse(calls); inOrder(calls) }}, nil, "store 1 answers"},
		"each is granted":      {history.Store{TakesEach: true}, func(l ratelimit.Limiter) ratelimit.Limiter { return generousEach{l} }, "store 1 answers"},
		"it panics":            {history.Store{TakesEach: true}, func(l ratelimit.Limiter) ratelimit.Limiter { return panickingEach{l} }, "panic: a TakeEach"},
	} {
		s := &history.Twins{
			Start:  time.Unix(1000, 0),
			Own:    map[string]int{"a": 0, "b": 1},
			Limits: []ratelimit.Algorithm{ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 5}, ratelimit.SlidingLog{Limit: 3, Window: time.Minute}},
		}
		s.Open = func(of func(key string) ratelimit.Algorithm) (on history.OpenTwins) {
			clk := ratelimittest.NewClock(s.Start)
			limits := ratelimit.WithLimits(func(_ context.Context, key string) (ratelimit.Algorithm, error) { return of(key), nil })
			limiters := func(broken func(ratelimit.Limiter) ratelimit.Limiter) (all []ratelimit.Limiter) {
				store := new(ratelimit.MemoryStore)
				for range 2 {
					for _, key := range []string{"a", "b"} {
						l := ratelimit.Must(ratelimit.New(of(key), ratelimit.WithName(key), ratelimit.WithStore(store), ratelimit.WithClock(clk), limits))
						if broken != nil {
							l = broken(l)
						}
						all = append(all, l)
					}
				}
				return all
			}
			first := tt.first
			first.Limiters = limiters(tt.broken)
			on.Stores, on.Clock = []history.Store{first, {Limiters: limiters(nil)}}, clk
			return on
		}
		g := &history.Generator{
			Choices:   history.NewRandom(7, 0),
			Keys:      []string{"a", "b"},
			Spans:     []time.Duration{time.Second, time.Minute},
			By:        2,
			Limits:    2,
			OwnLimits: true,
			OfSeveral: tt.broken == nil, // a broken one is none of the library's
			Together:  true,
		}
		_, wrong := history.Try(s, history.AtMost(3000, g.Next))
		if tt.want == "" {
			require.NoError(t, wrong, name)
			continue
		}
		require.ErrorContains(t, wrong, tt.want, name)
		require.ErrorContains(t, wrong, " and\n", name)
	}
}

// TestBound: more events in a span than may happen are found, and those that have come back do not
// count.
func TestBound(t *testing.T) {
	for text, want := range map[string]string{
		"take 3\nupto 2\nallow 1":                                         "",
		"take 3\npass 1s\ntake 3":                                         "6 events within 1s",
		"take 3\npass 1s\nhold 3 as h1":                                   "6 events within 1s",
		"take 3\npass 1s\nhold 3 as h1\nsettle h1 for 2":                  "",
		"take 5\nreserve 1 as h1":                                         "6 events within 1s",
		"take 5\nreserve 1 as h1\ncancel h1":                              "",
		"take 5\nreserve 1 as h1\npass 1s\ncancel h1":                     "6 events within 1s",
		"take 3\npass 1s\ntake 3\ncharge 1":                               "",
		"take 3\nhold 2 as h1\nsettle h1 for 3\npass 1s\npass 1s\ntake 1": "",
	} {
		s := setup(same)
		s.Bound = func(span time.Duration) int { return 5 }
		ops, err := history.Parse(text)
		require.NoError(t, err)
		wrong := history.Replay(s, ops)
		if want == "" {
			assert.NoError(t, wrong, text)
		} else {
			assert.ErrorContains(t, wrong, want, text)
		}
	}
}

// generous grants what its limiter denies.
type generous struct{ ratelimit.Limiter }

func (l generous) Take(ctx context.Context, key string, n int) (ratelimit.Decision, error) {
	d, err := l.Limiter.Take(ctx, key, n)
	d.Allowed = true
	return d, err
}

// stingy holds one event if two are to be held.
type stingy struct{ ratelimit.Limiter }

func (l stingy) Hold(ctx context.Context, key string, n int, opts ...ratelimit.HoldOption) (*ratelimit.Reservation, ratelimit.Decision, error) {
	if n == 2 {
		n = 1
	}
	return l.Limiter.Hold(ctx, key, n, opts...)
}

// spendingPeek takes an event in each Peek.
type spendingPeek struct{ ratelimit.Limiter }

func (l spendingPeek) Peek(ctx context.Context, key string) (ratelimit.Decision, error) {
	d, err := l.Limiter.Peek(ctx, key)
	l.Allow(key)
	return d, err
}

// hasty tells a time that is a nanosecond too early.
type hasty struct{ ratelimit.Limiter }

func (l hasty) Take(ctx context.Context, key string, n int) (ratelimit.Decision, error) {
	d, err := l.Limiter.Take(ctx, key, n)
	if d.RetryAfter > 0 {
		d.RetryAfter--
	}
	return d, err
}

// generousEach grants all in a TakeEach.
type generousEach struct{ ratelimit.Limiter }

func (l generousEach) TakeEach(ctx context.Context, keys []string, n int, into []ratelimit.Decision) ([]ratelimit.Decision, error) {
	all, err := l.Limiter.TakeEach(ctx, keys, n, into)
	for i := range all {
		all[i].Allowed = true
	}
	return all, err
}

// panickingEach panics if a TakeEach denies one.
type panickingEach struct{ ratelimit.Limiter }

func (l panickingEach) TakeEach(ctx context.Context, keys []string, n int, into []ratelimit.Decision) ([]ratelimit.Decision, error) {
	all, err := l.Limiter.TakeEach(ctx, keys, n, into)
	for _, d := range all {
		if !d.Allowed {
			panic("a TakeEach")
		}
	}
	return all, err
}

// careless takes any number of events.
type careless struct{ ratelimit.Limiter }

func (l careless) Take(ctx context.Context, key string, n int) (ratelimit.Decision, error) {
	return l.Limiter.Take(ctx, key, max(0, n))
}

// waiting waits until its context ends.
type waiting struct{ ratelimit.Limiter }

func (l waiting) Wait(ctx context.Context, _ string) error {
	<-ctx.Done()
	return ctx.Err()
}

// panicking panics if a key is reset that events were taken of.
type panicking struct{ ratelimit.Limiter }

func (l panicking) Reset(ctx context.Context, key string) error {
	if d, err := l.Peek(ctx, key); err == nil && d.Remaining < 5 {
		panic("a reset")
	}
	return l.Limiter.Reset(ctx, key)
}
