package memory

import (
	"context"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/internal/stepclock"
	"github.com/ratelimit-go/ratelimit/internal/timeline"
)

// The kernels that the tests use; the argument is the limit.

func must(k kernel.Kernel, err error) *step.Machine {
	if err != nil {
		panic(err)
	}
	return step.NewMachine(k, kernel.InMemory)
}

// loose has the kernels for logs of those for tables, if they differ.
var loose sync.Map

// both returns the kernel for tables.
func both(of func(enc kernel.Encoding) (kernel.Kernel, error)) *step.Machine {
	o := ownOf(of)
	if o.k.Word() != nil {
		loose.Store(o.k, o.loose)
	}
	return o.k
}

func bucket(events int, per time.Duration) *step.Machine {
	return both(func(enc kernel.Encoding) (kernel.Kernel, error) {
		return kernel.NewTokenBucket(events, per, per, events, enc, "")
	})
}

func aligned(limit int, window time.Duration) *step.Machine {
	return both(func(enc kernel.Encoding) (kernel.Kernel, error) {
		return kernel.NewFixedWindow(limit, uint64(window), true, enc), nil
	})
}

func onFirstEvent(limit int, window time.Duration) *step.Machine {
	return must(kernel.NewFixedWindow(limit, uint64(window), false, kernel.InMemory), nil)
}

func sliding(limit int, window time.Duration, segments uint64) *step.Machine {
	return both(func(enc kernel.Encoding) (kernel.Kernel, error) {
		return kernel.NewSlidingWindow(limit, segments, uint64(window)/segments, enc), nil
	})
}

func rolling(quota int, window, period time.Duration) *step.Machine {
	return must(kernel.NewRollingWindow(quota, 0, uint64(window/period), uint64(period)), nil)
}

func eventLog(limit int, window time.Duration) *step.Machine {
	return must(kernel.NewSlidingLog(limit, uint64(window), false), nil)
}

func all(parts ...*step.Machine) *step.Machine {
	var kernels []kernel.Kernel
	for _, part := range parts {
		kernels = append(kernels, part.Kernel)
	}
	return must(step.NewAll(kernels, kernel.InMemory), nil)
}

var everyWidth = []*step.Machine{
	bucket(10, time.Second),
	sliding(10, time.Second, 5),
	eventLog(10, time.Second),
	all(eventLog(10, time.Second), bucket(10, time.Second)),
}

// A limiter is a space, and a clock.
type limiter struct {
	k        *step.Machine
	fast     *Space
	timeline *timeline.Timeline
}

func newLimiter(s *Store, k *step.Machine, clk clock.Clock) *limiter {
	l := &limiter{k: k, timeline: timelineOf(s, clk)}
	inArena := k
	if other, ok := loose.Load(k); ok {
		inArena = other.(*step.Machine)
	}
	l.fast = s.OpenSpace(k, inArena, false)
	return l
}

func (l *limiter) apply(op step.Op, key string, n int) (a step.Answer) {
	return l.do(key, &step.Request{Op: op, N: n, Clock: l.timeline})
}

func (l *limiter) do(key string, req *step.Request) (a step.Answer) {
	l.fast.Apply(key, l.fast.Base(), req, &a)
	return a
}

func (l *limiter) Allow(key string) bool { return l.AllowN(key, 1) }

func (l *limiter) AllowN(key string, n int) bool {
	if n > l.k.Limit() {
		return l.apply(step.OpTake, key, n).Allowed
	}
	return l.fast.Allow(l.timeline, key, n)
}

func (l *limiter) Take(_ context.Context, key string, n int) (step.Answer, error) {
	return l.apply(step.OpTake, key, n), nil
}

func (l *limiter) Peek(_ context.Context, key string) (step.Answer, error) {
	return l.apply(step.OpPeek, key, 1), nil
}

func (l *limiter) Reset(_ context.Context, key string) error {
	l.fast.Reset(key)
	return nil
}

// An option changes a store.
type option func(*Store)

func withMaxKeys(n int) option  { return func(s *Store) { s.MaxKeys = int64(n) } }
func refusingNew(r bool) option { return func(s *Store) { s.RefuseNew = r } }

func newTestLimiter(t testing.TB, k *step.Machine, opts ...option) (*limiter, *Store, *stepclock.Clock) {
	t.Helper()
	s, clk := new(Store), stepclock.New()
	for _, opt := range opts {
		opt(s)
	}
	return newLimiter(s, k, clk), s, clk
}

// fill makes the given number of keys; all but the last are exhausted.
func fill(t testing.TB, l *limiter, keys, left int) {
	t.Helper()
	for i := range keys {
		require.True(t, l.AllowN(fmt.Sprint(i), 10-min(1, max(0, i-keys+left+1))))
	}
}

// check fails the test unless every invariant of the store holds. The store must not be
// in use.
func (s *Store) check(t testing.TB) {
	t.Helper()
	held := s.Stats().Keys
	require.Equal(t, held, s.Len())
	total := 0
	for _, sp := range s.spaces() {
		sp.check(t)
		keys := 0
		for _, sh := range sp.list() {
			keys += sp.checkShard(t, sh)
		}
		if total += keys; s.MaxKeys > 0 {
			require.EqualValues(t, keys, sp.keys.Load())
		}
	}
	require.Equal(t, total, held)
	if s.MaxKeys > 0 {
		require.LessOrEqual(t, int64(total), s.MaxKeys)
		require.EqualValues(t, total, s.held.Load())
	}
}

// list returns all shards.
func (d *directory) list() []*shard { return slices.Collect(d.shards(0)) }

// check checks that the directory leads to each shard as often as it should.
func (sp *Space) check(t testing.TB) {
	t.Helper()
	entries := *sp.entries.Load()
	require.Equal(t, 1, bits.OnesCount(uint(len(entries))), "a power of two of entries")
	require.LessOrEqual(t, len(entries), sp.most)
	led := make(map[*shard]int)
	for i := range entries {
		at := entries[i].Load()
		sh := at.shard
		require.Same(t, entries[sh.first].Load(), at, "all entries of a shard lead to the same")
		require.Equal(t, sh.first, uint32(i)&(1<<sh.depth-1))
		led[sh]++
	}
	require.Len(t, sp.list(), len(led), "evictions see every shard, once")
	for _, sh := range sp.list() {
		require.NotZero(t, led[sh])
	}
	for i, word := range noKeys {
		require.Zero(t, word, "word %d", i)
	}
}

// check checks one shard and returns how many keys it holds.
func (sp *Space) checkShard(t testing.TB, sh *shard) (keys int) {
	t.Helper()
	tbl := sp.current(sh)
	if tbl.most > 0 {
		require.Len(t, tbl.words, int(tbl.groups*tbl.size))
	}
	require.LessOrEqual(t, sh.used, tbl.most)
	require.Less(t, uint64(tbl.most), tbl.groups*groupSlots, "some slots are free, or looking would not end")
	used := uint32(0)
	var references []uint64
	for group := uint64(0); group < uint64(len(tbl.words)); group += tbl.size {
		for index := range uint64(groupSlots) {
			at := slot{group, index}
			id := tbl.id(at)
			if tbl.most == 0 {
				require.Zero(t, id, "all shards without keys share these")
				continue
			}
			if id.hi == 0 {
				require.Zero(t, id.lo, "nobody was ever here")
				for _, word := range tbl.state(at) {
					require.Zero(t, word, "nobody was ever here")
				}
				continue
			}
			used++
			if id.lo == 0 { // forgotten
				if tbl.width == 1 {
					require.Equal(t, uint64(gone), *tbl.word(at), "guarantee 3")
				}
				continue
			}
			keys++
			require.Same(t, sh, sp.tableOf(id).shard, "each key in its own shard")
			found, ok := tbl.find(id)
			require.True(t, ok && found == at, "each key is found, once")
			if word, ok := tbl.refers(at); ok {
				require.NotEqual(t, uint64(gone), word, "nothing is gone in a current table")
				references = append(references, word)
			} else if tbl.width == 1 {
				require.NotNil(t, sp.limitAt(tbl, at).word)
			}
		}
	}
	require.Equal(t, used, sh.used)
	require.EqualValues(t, keys, sh.keys)
	if sh.arena != nil {
		sh.arena.check(t, references)
	} else {
		require.Empty(t, references)
	}
	return keys
}

// check checks an arena, and that it has the states to which words refer, and no others.
func (a *arena) check(t testing.TB, references []uint64) {
	t.Helper()
	slices.Sort(references)
	require.Len(t, slices.Compact(references), a.keys(), "each state belongs to one key")
	for _, i := range a.free {
		require.True(t, a.records[i].unused())
	}
	used, outside, apart := 0, 0, 0
	blocks := make([]bool, len(a.words)) // by the word where one begins
	states := make(map[usedKernel]int)
	for _, word := range references {
		e := a.record(word)
		require.False(t, e.unused())
		states[usedKernel{Machine: a.kernel(e), form: a.state(e).Form}]++
		if e.cap == isLarge {
			outside += cap(a.large[e.at])
			apart++
			continue
		}
		used += int(e.cap)
		require.LessOrEqual(t, e.len, e.cap)
		for at := range e.cap {
			require.False(t, blocks[int(e.at)+int(at)], "each word belongs to one state")
			blocks[int(e.at)+int(at)] = true
		}
	}
	require.EqualValues(t, used, a.used)
	require.EqualValues(t, outside, a.outside)
	require.Len(t, a.large, apart+len(a.vacant))
	for _, i := range a.vacant {
		require.Nil(t, a.large[i])
	}
	for _, u := range a.kernels {
		of := usedKernel{Machine: u.Machine, form: u.form}
		require.Equal(t, states[of], u.keys)
		delete(states, of)
	}
	require.Empty(t, states, "each kernel is listed, once")
}

// TestConcurrency: a store stays consistent whatever is called at once, also while its tables split
// and shrink.
func TestConcurrency(t *testing.T) {
	for _, bound := range []int{0, 1, 7, 300} {
		for _, k := range everyWidth {
			l, s, clk := newTestLimiter(t, k, withMaxKeys(bound))
			l.fast.splitAt = 4
			var wg sync.WaitGroup
			for g := range 8 {
				wg.Go(func() {
					for i := range 500 {
						key := fmt.Sprint((i * (g + 1)) % 400)
						switch i % 50 {
						default:
							l.AllowN(key, 1+i%10)
						case 10:
							_ = l.Reset(t.Context(), key)
						case 20:
							_, _ = l.Peek(t.Context(), key)
						case 30:
							l.reserveAndCancel(key, 3)
						case 40:
							clk.Advance(20 * time.Millisecond)
						case 45:
							if g == 0 {
								s.Shrink()
							}
						}
					}
				})
			}
			wg.Wait()
			s.check(t)
		}
	}
}

func (l *limiter) reserveAndCancel(key string, n int) {
	req := step.Request{Op: step.OpReserve, N: n, MaxWait: time.Hour, Clock: l.timeline, Hold: step.Handle{ID: 2 + 2*rand.Uint64N(1<<40)}}
	if a := l.do(key, &req); a.Held {
		l.do(key, &step.Request{Op: step.OpSettle, Hold: req.Hold, Clock: l.timeline})
	}
}

// TestDropped: a space that is dropped during a call has no keys afterwards, and takes no place.
func TestDropped(t *testing.T) {
	for _, k := range everyWidth {
		for _, bound := range []int{0, 600} {
			l, s, clk := newTestLimiter(t, k, withMaxKeys(bound))
			other := newLimiter(s, k, clk)
			l.fast.splitAt = 4
			for i := range 300 {
				require.True(t, l.AllowN(fmt.Sprint(i), 2))
				require.True(t, other.AllowN(fmt.Sprint(i), 2))
			}
			s.Drop(l.fast)
			require.Equal(t, 300, s.Len())
			for i := range 300 {
				require.True(t, l.AllowN(fmt.Sprint(i), 2), "%v: the call goes on", k.Kind())
				a := l.do(fmt.Sprint(i), &step.Request{Op: step.OpHold, N: 1, Clock: l.timeline, Hold: step.Handle{ID: 1, For: time.Hour}})
				require.True(t, a.Allowed && a.Held)
			}
			require.Equal(t, 300, s.Len())
			require.EqualValues(t, 600, s.Stats().Inserts)
			for i := range 700 {
				require.True(t, other.Allow(fmt.Sprint("new ", i)))
			}
			s.check(t)
			require.Zero(t, count(t, l.fast))
		}
	}
}

// TestDroppedWhileKeysEnter: whatever comes first, no key stays.
func TestDroppedWhileKeysEnter(t *testing.T) {
	for range budget.Histories(50, 1000) {
		l, s, _ := newTestLimiter(t, everyWidth[2], withMaxKeys(1000))
		l.fast.splitAt = 4
		var calls sync.WaitGroup
		for g := range 4 {
			calls.Go(func() {
				for i := range 100 {
					l.Allow(fmt.Sprint(g, " ", i))
				}
			})
		}
		s.Drop(l.fast)
		calls.Wait()
		require.Zero(t, s.Len())
		require.Zero(t, count(t, l.fast))
		s.check(t)
	}
}

// TestSpacesLeave: spaces that were dropped are copied only now and then, and never are more than
// half of all.
func TestSpacesLeave(t *testing.T) {
	const limiters = 1000
	s, clk := new(Store), stepclock.New()
	var all []*limiter
	for range limiters {
		all = append(all, newLimiter(s, everyWidth[0], clk))
	}
	rand.New(rand.NewPCG(1, 2)).Shuffle(limiters, func(i, j int) { all[i], all[j] = all[j], all[i] })
	copied := 0
	for i, l := range all {
		before := len(s.spaces())
		s.Drop(l.fast)
		left := limiters - 1 - i
		if after := len(s.spaces()); after != before {
			require.Equal(t, left, after, "only those that are used")
			copied += after
		}
		require.LessOrEqual(t, len(s.spaces()), 2*left+1)
	}
	assert.LessOrEqual(t, copied, limiters)
	assert.Empty(t, s.spaces())
}

// TestDecideIsEnough: the faster way decides by itself on the requests of usual traffic, and leaves
// the state that the slower one would.
func TestDecideIsEnough(t *testing.T) {
	k, clk := bucket(10, time.Second), stepclock.New()
	d, passing := decider{k, k.Word()}, timeline.New(clk, nil)
	for _, req := range []step.Request{
		{Op: step.OpTake, N: 4}, {Op: step.OpCharge, N: 1}, {Op: step.OpPeek}, {Op: step.OpTake, N: 1},
	} {
		req.Clock = passing
		for _, word := range []uint64{0, timeline.InstantOf(clk.Now().Add(500 * time.Millisecond)), timeline.InstantOf(clk.Now().Add(time.Second))} {
			var fast, slow step.Answer
			st := []uint64{word}
			k.Step(st, &req, &slow)
			if req.Op == step.OpCharge && word != 0 && !slow.Allowed {
				continue // what it counts is not granted
			}
			require.True(t, d.decide(&word, &req, &fast), "%+v", req)
			require.Equal(t, st[0], word, "%+v", req)
			require.Equal(t, slow, fast, "%+v", req)
		}
	}
}

// TestStatsWhileSpacesLeave: the count of inserts never falls, and none is lost, while spaces are
// dropped.
func TestStatsWhileSpacesLeave(t *testing.T) {
	const limiters = 2000
	s, clk := new(Store), stepclock.New()
	var done atomic.Bool
	var reader sync.WaitGroup
	reader.Go(func() {
		for last := uint64(0); !done.Load(); {
			now := s.Stats().Inserts
			if !assert.GreaterOrEqual(t, now, last) {
				return
			}
			last = now
		}
	})
	for i := range limiters {
		l := newLimiter(s, everyWidth[0], clk)
		require.True(t, l.Allow(fmt.Sprint(i)))
		s.Drop(l.fast)
	}
	done.Store(true)
	reader.Wait()
	assert.EqualValues(t, limiters, s.Stats().Inserts)
}

// timelineOf returns the timeline of a store, which is that of clk if there is none yet.
func timelineOf(s *Store, clk clock.Clock) *timeline.Timeline {
	t, _ := s.Timeline(func() (*timeline.Timeline, error) { return timeline.New(clk, nil), nil })
	return t
}
