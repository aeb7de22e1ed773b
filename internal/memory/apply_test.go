package memory

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/internal/stepclock"
	"github.com/ratelimit-go/ratelimit/internal/timeline"
)

// An own is a limit of a key's own, in both forms.
type own struct{ k, loose *step.Machine }

func ownOf(of func(enc kernel.Encoding) (kernel.Kernel, error)) own {
	compiled := func(enc kernel.Encoding) *step.Machine {
		k, err := of(enc)
		if err != nil {
			panic(err)
		}
		return step.NewMachine(k, enc)
	}
	return own{compiled(kernel.InMemory), compiled(kernel.InMemory.Varying())}
}

func ownBucket(events, burst int) own {
	return ownOf(func(enc kernel.Encoding) (kernel.Kernel, error) {
		return kernel.NewTokenBucket(events, time.Second, time.Second, burst, enc, "")
	})
}

func ownLeaky(events, capacity int) own {
	return ownOf(func(enc kernel.Encoding) (kernel.Kernel, error) {
		return kernel.NewLeakyBucket(events, time.Second, time.Second, capacity, enc, "")
	})
}

func ownWindow(limit int, window time.Duration) own {
	return ownOf(func(enc kernel.Encoding) (kernel.Kernel, error) {
		return kernel.NewFixedWindow(limit, uint64(window), true, enc), nil
	})
}

func ownLog(limit int) own {
	return ownOf(func(kernel.Encoding) (kernel.Kernel, error) {
		return kernel.NewSlidingLog(limit, uint64(time.Second), false), nil
	})
}

// owns are limits of every kind that matters here: states of one word, of more because the
// rate has no short period, and logs.
var owns = []own{
	ownBucket(3, 3), ownBucket(1, 2), ownBucket(3, 5), ownBucket(7, 4),
	ownLeaky(3, 4), ownLeaky(2, 2),
	ownWindow(3, time.Second), ownWindow(5, time.Second), ownWindow(2, 3*time.Second),
	ownLog(3),
}

// A variedLimiter is a Space of limits of keys' own, and a clock. Tags are indices of owns; that of
// the base is 0.
type variedLimiter struct {
	*Space
	s        *Store
	clk      *stepclock.Clock
	timeline *timeline.Timeline
}

func newVariedLimiter(opts ...option) *variedLimiter {
	s, clk := new(Store), stepclock.New()
	for _, opt := range opts {
		opt(s)
	}
	return &variedLimiter{s.OpenSpace(owns[0].k, owns[0].loose, true), s, clk,
		timelineOf(s, clk)}
}

func (l *variedLimiter) tag(i int) any {
	if i == 0 {
		return nil
	}
	return i
}

func (l *variedLimiter) limit(i int) *Limit {
	if i == 0 {
		return l.Base()
	}
	return l.Limit(i, owns[i].k, owns[i].loose)
}

// take takes n events with the i-th limit, in the way of the public package.
func (l *variedLimiter) take(key string, i, n int) bool {
	if granted, ok := l.AllowAs(l.timeline, key, l.tag(i), n); ok {
		return granted
	}
	return n <= owns[i].k.Limit() && l.AllowBy(l.timeline, key, l.limit(i), n)
}

func (l *variedLimiter) do(key string, i int, req step.Request) (a step.Answer) {
	req.Clock = l.timeline
	if req.Op > step.OpPeek || !l.ApplyAs(key, l.tag(i), &req, &a) {
		l.Apply(key, l.limit(i), &req, &a)
	}
	return a
}

// takeAll takes n events of the first key, one more of the next, and so on, each with the limit of
// the same index, or none.
func (l *variedLimiter) takeAll(n int, keys []string, limits []int) (granted bool, answers []step.Answer) {
	j := newJoint()
	defer j.close()
	for at, key := range keys {
		j.add(l.Space, l.limit(limits[at]), &limit.Call{Key: key, Request: step.Request{Clock: l.timeline, N: n + at}})
	}
	granted = j.decide() && j.granted
	for i := range j.keys {
		answers = append(answers, j.keys[i].Answer)
	}
	return granted, answers
}

// check checks the store, and returns how many states are words.
func (l *variedLimiter) check(t testing.TB) (words, inArenas int) {
	t.Helper()
	l.s.check(t)
	for _, sh := range l.list() {
		if sh.arena != nil {
			inArenas += sh.arena.keys()
		}
	}
	return l.s.Len() - inArenas, inArenas
}

// FuzzVaried decodes calls from bytes, and applies them to the store and to a plain map of
// states, which never forgets a key. Both must give the same answers, however keys move
// between words and arenas, and tables are replaced, split, swept and emptied.
func FuzzVaried(f *testing.F) {
	rng := budget.Rand(f)
	for range 60 {
		data := make([]byte, 1500)
		for i := range data {
			data[i] = byte(rng.Uint32())
		}
		f.Add(data)
	}
	// A key of two limits is idle in both, and forgotten, before one of them goes.
	f.Add([]byte("\x7f\x29\x99\xdd\x19\xbbS=\xed\xce\xb1w\xf1\x08+s\xf3(\x13\xdch\xd5:~#\xc9\xc8"))
	f.Fuzz(func(t *testing.T, data []byte) {
		l := newVariedLimiter()
		l.splitAt = 1
		type held struct {
			by *step.Machine
			st step.State
		}
		states := make(map[string]held)
		state := func(key string, i int) held {
			if was, ok := states[key]; ok {
				return was
			}
			return held{owns[i].loose, step.PlainState(owns[i].loose.NewState())}
		}
		type turn struct {
			key string
			i   int
			id  uint64
		}
		var turns []turn
		for data = data[:min(len(data), 3000)]; len(data) >= 3; data = data[3:] {
			key, i, n := fmt.Sprint(data[0]%16), int(data[1])%len(owns), 1+int(data[2]%4)
			req := step.Request{Op: step.OpTake, N: n}
			switch data[0] / 16 {
			case 7:
				keys, limits := []string{key, fmt.Sprint((data[0] + 1 + data[2]%15) % 16)}, []int{i, int(data[2]) % len(owns)}
				req.Fixed = &step.Reading{Now: timeline.InstantOf(l.clk.Now()), Own: true}
				want, granted, next := make([]step.Answer, 2), true, make([]held, 2)
				for at, key := range keys {
					was, o := state(key, limits[at]), owns[limits[at]].loose
					req.N = n + at
					next[at].by, next[at].st, _ = o.StepFrom(was.by, was.st.Clone(), &req, &want[at])
					granted = granted && want[at].Allowed
				}
				for at, key := range keys {
					if !granted {
						was, o := state(key, limits[at]), owns[limits[at]].loose
						req := req
						req.N, req.Refused = n+at, true
						next[at].by, next[at].st, _ = o.StepFrom(was.by, was.st.Clone(), &req, &want[at])
					}
					states[key] = next[at]
				}
				got, answers := l.takeAll(n, keys, limits)
				require.Equal(t, granted, got)
				for at := range want {
					want[at].Idle, answers[at].Idle = 0, 0
				}
				require.Equal(t, want, answers)
				continue
			case 8:
				req.Op = step.OpPeek
			case 9:
				req.UpTo, req.N = true, n*n
			case 10:
				req.Op, req.MaxWait, req.Hold.ID = step.OpReserve, time.Duration(data[1])*10*time.Millisecond, uint64(len(data)*2)
			case 11:
				if len(turns) == 0 {
					continue
				}
				r := turns[int(data[1])%len(turns)]
				key, i = r.key, r.i
				req.Op, req.N, req.Hold.ID = step.OpSettle, 0, r.id
			case 12:
				l.clk.Advance(time.Duration(data[1])<<(data[2]%24) + 1)
				continue
			case 13:
				l.clk.Advance(time.Duration(data[1]) * 10 * time.Millisecond)
				continue
			case 14:
				l.Reset(key)
				delete(states, key)
				continue
			case 15:
				if data[1] < 64 {
					l.s.Shrink()
				}
				l.check(t)
				continue
			}
			allow := req.Op == step.OpTake && !req.UpTo && data[2]&64 != 0
			if allow && n > owns[i].k.Limit() {
				require.False(t, l.take(key, i, n)) // and the store is not asked
				continue
			}
			was := state(key, i)
			other, b := req, step.Answer{}
			other.Fixed = &step.Reading{Now: timeline.InstantOf(l.clk.Now()), Own: true}
			by, st, _ := owns[i].loose.StepFrom(was.by, was.st.Clone(), &other, &b)
			states[key] = held{by, st}
			if allow {
				require.Equal(t, b.Allowed, l.take(key, i, n))
				continue
			}
			a := l.do(key, i, req)
			if req.Op == step.OpReserve && a.Held {
				turns = append(turns, turn{key, i, req.Hold.ID})
			}
			a.Idle, b.Idle = 0, 0        // the store may have forgotten what is idle
			if req.Op != step.OpSettle { // it describes the limit that left the state, unless the key is forgotten
				require.Equal(t, b, a, "%+v with limit %d", req, i)
			}
		}
		l.check(t)
	})
}

// TestLimitsMoveNothingTwice changes the limits of a few keys while many goroutines take
// from them, others insert keys, so that tables are replaced and split, reset keys and
// make reservations: each key is granted what its highest limit allows, and no more.
func TestLimitsMoveNothingTwice(t *testing.T) {
	hours := []own{ownWindow(60, time.Hour), ownWindow(100, time.Hour), ownWindow(100, 2*time.Hour), ownWindow(80, time.Hour)}
	for _, few := range []bool{false, true} {
		l := newVariedLimiter()
		l.splitAt = 4
		limits := make([]*Limit, len(hours))
		for i, o := range hours {
			limits[i] = l.Limit(100+i, o.k, o.loose)
		}
		if few { // the rest is not numbered, and so its states are in arenas
			limits[2], limits[3] = &Limit{space: l.serial, loose: hours[2].loose}, &Limit{space: l.serial, loose: hours[3].loose}
		}
		const keys = 4
		var granted [keys]atomic.Int64
		var limit atomic.Int64
		var wg sync.WaitGroup
		for g := range 6 {
			wg.Go(func() {
				for i := range 600 {
					k, now := i%keys, int(limit.Load())%len(limits)
					key := fmt.Sprint("hot ", k)
					switch {
					case i%20 == 7:
						limit.Add(1)
					case i%50 == 9:
						l.take(fmt.Sprint(g, "/", i), i%len(owns), 1)
					case i%100 == 11:
						l.Reset(fmt.Sprint(g, "/", i-2))
					case i%100 == 13 && g == 0:
						l.s.Shrink()
					case i%100 == 15:
						l.do(fmt.Sprint(g, "/", i), 0, step.Request{Op: step.OpReserve, N: 2, MaxWait: time.Hour})
					default:
						ok, known := l.AllowAs(l.timeline, key, 100+now, 1)
						if !known {
							ok = l.AllowBy(l.timeline, key, limits[now], 1)
						}
						if ok {
							granted[k].Add(1)
						}
					}
				}
			})
		}
		wg.Wait()
		for k := range keys {
			for l.AllowBy(l.timeline, fmt.Sprint("hot ", k), limits[1], 1) {
				granted[k].Add(1)
			}
			assert.Equal(t, int64(100), granted[k].Load(), "key %d", k)
		}
		l.check(t)
	}
}

// TestPlaces: where a state is, and that it is a word again when it can.
func TestPlaces(t *testing.T) {
	l := newVariedLimiter()
	places := func(words, inArenas int) {
		t.Helper()
		gotWords, gotArenas := l.check(t)
		require.Equal(t, []int{words, inArenas}, []int{gotWords, gotArenas}, "words, and others")
	}
	require.True(t, l.take("key", 2, 5))
	places(1, 0)
	require.Nil(t, l.tableOf(l.s.identify("key")).shard.arena, "nothing needs it yet")
	require.False(t, l.take("key", 0, 1), "3 at once")
	l.clk.Advance(700 * time.Millisecond)
	require.False(t, l.take("key", 0, 1))
	places(1, 0) // a denial changes nothing
	l.clk.Advance(time.Second)
	require.True(t, l.take("key", 0, 1))
	places(1, 0)
	require.False(t, l.do("key", 0, step.Request{Op: step.OpReserve, N: 2, MaxWait: time.Second, Hold: step.Handle{ID: 2}}).Held)
	places(1, 0) // its turn is now
	require.True(t, l.do("key", 0, step.Request{Op: step.OpReserve, N: 2, MaxWait: time.Second, Hold: step.Handle{ID: 4}}).Held)
	places(0, 1) // the reservation may be cancelled
	require.False(t, l.take("key", 0, 1))
	l.clk.Advance(time.Second)
	require.False(t, l.take("key", 0, 3))
	places(0, 1) // its turn has come
	l.clk.Advance(time.Second)
	require.True(t, l.take("key", 0, 1))
	places(1, 0)
	require.True(t, l.take("key", 9, 1))
	places(0, 1) // a log
	require.True(t, l.take("key", 6, 1))
	places(1, 0)
	require.True(t, l.take("other", 9, 1))
	places(1, 1)
	l.Reset("key")
	l.Reset("other")
	places(0, 0)
}

// TestJointsMoveStatesBack: a joint that grants events moves a state from the arena back to its
// slot, once it has an equal there: after a hold, and after a change of the limit.
func TestJointsMoveStatesBack(t *testing.T) {
	l := newVariedLimiter()
	var keys []string
	for i := range 200 { // enough for tables to be replaced
		keys = append(keys, fmt.Sprint(i))
	}
	all := func(limit int) []int { return slices.Repeat([]int{limit}, len(keys)) }
	for i, limits := range []int{0, 1, 6, 7, 0} {
		for at, key := range keys {
			hold := step.Handle{ID: uint64(2*(i*len(keys)+at) + 1), For: time.Second}
			require.True(t, l.do(key, limits, step.Request{Op: step.OpHold, N: 1, Hold: hold}).Held)
			if at%2 == 0 { // the others end by themselves
				l.do(key, limits, step.Request{Op: step.OpSettle, Hold: hold})
			}
		}
		_, inArenas := l.check(t)
		require.Equal(t, len(keys), inArenas)
		l.clk.Advance(10 * time.Second)
		for range 2 { // the first finds the holds that have ended
			for at, key := range keys {
				granted, _ := l.takeAll(1, keys[at:at+1], all(limits))
				require.True(t, granted, key)
			}
			l.clk.Advance(3 * time.Second)
		}
		words, inArenas := l.check(t)
		require.Equal(t, []int{len(keys), 0}, []int{words, inArenas}, "limit %d", limits)
	}

	wide, s, clk := newTestLimiter(t, sliding(10, time.Second, 5))
	for _, key := range keys {
		require.True(t, wide.do(key, &step.Request{Op: step.OpHold, N: 1, Clock: wide.timeline, Hold: step.Handle{ID: 1, For: time.Second}}).Held)
	}
	clk.Advance(10 * time.Second)
	for range 2 {
		j := newJoint()
		for _, key := range keys {
			j.add(wide.fast, wide.fast.Base(), &limit.Call{Key: key, Request: step.Request{Clock: wide.timeline, N: 1}})
		}
		require.True(t, j.decide() && j.granted)
		j.close()
	}
	s.check(t)
	for _, sh := range wide.fast.list() {
		require.True(t, sh.arena == nil || sh.arena.keys() == 0)
	}
}

// TestMovedKeysAreForgotten: idle keys are also forgotten if their states have moved to the arena,
// or back.
func TestMovedKeysAreForgotten(t *testing.T) {
	reserve := step.Request{Op: step.OpReserve, N: 1, MaxWait: time.Hour, Hold: step.Handle{ID: 2}}
	for name, use := range map[string]func(l *variedLimiter, key string){
		"to the arena": func(l *variedLimiter, key string) {
			for l.take(key, 1, 1) {
			}
			require.True(t, l.do(key, 1, reserve).Held)
		},
		"and back": func(l *variedLimiter, key string) {
			for l.take(key, 6, 1) {
			}
			a := l.do(key, 6, reserve)
			require.True(t, a.Held)
			l.do(key, 6, step.Request{Op: step.OpSettle, Hold: reserve.Hold})
			l.clk.Advance(a.Wait)
			require.True(t, l.take(key, 6, 1))
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newVariedLimiter()
			most := 0
			for i := range 20_000 {
				use(l, fmt.Sprint(i))
				if i%100 == 99 {
					l.clk.Advance(time.Second) // a key is idle after at most 3 s
					most = max(most, l.s.Len())
				}
			}
			assert.Less(t, most, 3000)
			l.check(t)
		})
	}
}

// TestNewKeysSweepBothPlaces: keys whose states are in arenas are forgotten when new keys come
// whose states are words, and conversely.
func TestNewKeysSweepBothPlaces(t *testing.T) {
	for _, limits := range [][2]int{{1, 9}, {9, 1}} { // of a flood in one place, and of a trickle in the other
		l := newVariedLimiter()
		for i := range 10_000 {
			require.True(t, l.take(fmt.Sprint("flood ", i), limits[0], 1))
		}
		for i := range 5000 {
			l.clk.Advance(20 * time.Millisecond)
			require.True(t, l.take(fmt.Sprint("trickle ", i), limits[1], 1))
		}
		assert.Less(t, l.s.Len(), 1000, "limit %d", limits[0])
		l.check(t)
	}
}

// TestNumbersRunOut: states of limits for which there is no number are in arenas. Numbers survive
// the replacement of tables.
func TestNumbersRunOut(t *testing.T) {
	l := newVariedLimiter()
	l.splitAt = 32
	const limits = mostNumbers + 200
	allow := func(i, n int) bool {
		o := ownWindow(i, time.Hour)
		return l.AllowBy(l.timeline, fmt.Sprint(i), l.Limit(fmt.Sprint("limit ", i), o.k, o.loose), n)
	}
	for i := 1; i <= limits; i++ {
		require.True(t, allow(i, i))
	}
	words, inArenas := l.check(t)
	assert.Equal(t, mostNumbers-1, words)
	assert.Equal(t, limits-mostNumbers+1, inArenas)
	for i := 1; i <= limits; i++ {
		require.False(t, allow(i, 1), "limit %d", i)
	}
	l.clk.Advance(2 * time.Hour)
	l.s.Shrink()
	l.check(t)
	assert.Zero(t, l.s.Len())
}

// TestEvictionsKnowTheLimits: a full store judges each key by its own limit, wherever the
// key is.
func TestEvictionsKnowTheLimits(t *testing.T) {
	for _, refuses := range []bool{false, true} {
		l := newVariedLimiter(withMaxKeys(40), refusingNew(refuses))
		for i := range 40 {
			require.True(t, l.take(fmt.Sprint(i), []int{2, 6, 9}[i%3], 3-i%2), "%d", i)
		}
		l.check(t)
		require.Equal(t, 40, l.s.Len())
		for i := range 7 { // 7 keys with 5 of 5 tokens have 2 or 3 left, all others at most 1
			l.take(fmt.Sprint("new ", i), 0, 3)
		}
		l.check(t)
		require.Equal(t, 40, l.s.Len())
		for i := range 40 {
			if i%3 > 0 && i%2 == 0 {
				require.False(t, l.take(fmt.Sprint(i), []int{2, 6, 9}[i%3], 1), "RefuseNew %t: key %d was lost", refuses, i)
			}
		}
		l.clk.Advance(time.Hour)
		require.True(t, l.take("newer", 0, 3), "the others are idle")
		l.check(t)
	}
}

// TestVariedAtTheCap races everything with a bound on keys.
func TestVariedAtTheCap(t *testing.T) {
	for _, bound := range []int{1, 7, 100} {
		for _, refuses := range []bool{false, true} {
			l := newVariedLimiter(withMaxKeys(bound), refusingNew(refuses))
			l.splitAt = 4
			const callers = 6
			most := bound // at any time
			if !refuses {
				most += 2 * callers // of which each may have two new keys in a joint
			}
			var wg sync.WaitGroup
			for g := range callers {
				wg.Go(func() {
					rng := rand.New(rand.NewPCG(uint64(g), uint64(bound)))
					for range 400 {
						key, i := fmt.Sprint(rng.IntN(2*bound+10)), rng.IntN(len(owns))
						switch rng.IntN(20) {
						default:
							l.take(key, i, 1+rng.IntN(2))
						case 0:
							l.Reset(key)
						case 1:
							l.do(key, i, step.Request{Op: step.OpPeek, N: 1})
						case 2:
							id := step.Handle{ID: 2 + 2*rng.Uint64N(1<<40)}
							if a := l.do(key, i, step.Request{Op: step.OpReserve, N: 1, MaxWait: time.Hour, Hold: id}); a.Held {
								l.do(key, i, step.Request{Op: step.OpSettle, Hold: id})
							}
						case 3:
							l.clk.Advance(50 * time.Millisecond)
						case 4:
							if g == 0 {
								l.s.Shrink()
							}
						case 5, 6:
							if other := fmt.Sprint(rng.IntN(2*bound + 10)); other != key {
								l.takeAll(1, []string{key, other}, []int{i, rng.IntN(len(owns))})
							}
						}
						assert.LessOrEqual(t, l.s.Len(), most)
					}
				})
			}
			wg.Wait()
			assert.LessOrEqual(t, l.s.Len(), bound)
			l.check(t)
		}
	}
}

// A hooked clock calls a function the next time that it is read.
type hooked struct {
	*stepclock.Clock
	hook func()
}

func (c *hooked) Since(t time.Time) time.Duration {
	if f := c.hook; f != nil {
		c.hook = nil
		f()
	}
	return c.Clock.Since(t)
}

// TestChangesOwnTheState: while a state is converted to another limit, nobody decides on it without
// the lock, so that no event is lost.
func TestChangesOwnTheState(t *testing.T) {
	clk := &hooked{Clock: stepclock.New()}
	l := newVariedLimiter()
	l.timeline = timeline.New(clk, nil)
	old, next := ownWindow(60, time.Hour), ownWindow(61, time.Hour)
	require.True(t, l.AllowBy(l.timeline, "key", l.Limit("old", old.k, old.loose), 59))
	clk.hook = func() {
		_, ok := l.AllowAs(l.timeline, "key", "old", 1)
		require.False(t, ok)
	}
	lim := l.Limit("next", next.k, next.loose)
	require.True(t, l.AllowBy(l.timeline, "key", lim, 1))
	require.Nil(t, clk.hook)
	require.True(t, l.AllowBy(l.timeline, "key", lim, 1))
	require.False(t, l.AllowBy(l.timeline, "key", lim, 1))
	l.check(t)
}

// TestChargesLeaveWords: a charge that is granted leaves a word, also if another caller was faster
// to swap it.
func TestChargesLeaveWords(t *testing.T) {
	l := newVariedLimiter()
	require.True(t, l.take("key", 1, 1))
	id := l.s.identify("key")
	sh, tbl := l.lock(id)
	at, ok := tbl.find(id)
	require.True(t, ok)
	ls := lockedSlot{l.Space, sh, tbl, at}
	var a step.Answer
	ls.step(l.limit(1), &step.Request{Op: step.OpCharge, N: 1, Clock: l.timeline}, &a)
	sh.mu.Unlock()
	words, _ := l.check(t)
	require.Equal(t, 1, words)
	require.False(t, l.take("key", 1, 1), "both are counted")
}
