package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/stepclock"
)

// TestReservationsAreSmall: a reservation takes the same memory whatever its key's
// state is.
func TestReservationsAreSmall(t *testing.T) {
	budget.Alone(t)
	for _, alg := range []Algorithm{
		TokenBucket{Rate: PerSecond(1)},
		SlidingLog{Limit: 5000, Window: time.Minute},
		SlidingWindow{Limit: 5000, Window: time.Minute, Segments: 60},
		RollingWindow{Quota: 100_000, Window: 24 * time.Hour, Period: time.Minute},
	} {
		l, _, clk := newTestLimiter(t, alg)
		for l.Allow("key") {
			clk.Advance(time.Millisecond)
		}
		const many = 10_000
		line := make([]*Reservation, many)
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		for i := range line {
			var err error
			line[i], err = l.Reserve(t.Context(), "key", 1)
			require.NoError(t, err)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		assert.Less(t, (int64(after.HeapAlloc)-int64(before.HeapAlloc))/many, int64(640), "%T: bytes for each", alg)
		runtime.KeepAlive(line)
	}
}

// TestWaitThatIsGrantedKeepsNothing: it does not stand in line, and copies nothing.
func TestWaitThatIsGrantedKeepsNothing(t *testing.T) {
	for _, alg := range []Algorithm{
		TokenBucket{Rate: PerSecond(1), Burst: 1e9},
		FixedWindow{Limit: 1e9, Window: time.Hour},
		SlidingWindow{Limit: 1e9, Window: time.Hour, Segments: 6},
	} {
		l, _, _ := newTestLimiter(t, alg)
		require.NoError(t, l.Wait(t.Context(), "key"))
		ctx := context.Background()
		assert.Zero(t, testing.AllocsPerRun(100, func() { _ = l.Wait(ctx, "key") }), "%T", alg)
		assert.Zero(t, l.lines.count.Load())
	}
	l, _, clk := newTestLimiter(t, SlidingLog{Limit: 20_000, Window: time.Hour})
	for range 10_000 {
		clk.Advance(1)
		require.True(t, l.Allow("key"))
	}
	ctx := context.Background()
	assert.Less(t, testing.AllocsPerRun(100, func() { _ = l.Wait(ctx, "key") }), 1.0)
}

// TestLogKeepsItsRate: waiters on a log that is full get all of its rate.
func TestLogKeepsItsRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit, waiters = 2000, 64
		l := Must(New(SlidingLog{Limit: limit, Window: time.Second}))
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second-1)
		defer cancel()
		var granted atomic.Int64
		var wg sync.WaitGroup
		for range waiters {
			wg.Go(func() {
				for l.Wait(ctx, "key") == nil {
					granted.Add(1)
				}
			})
		}
		wg.Wait()
		assert.EqualValues(t, 5*limit, granted.Load())
	})
}

// TestLinesEnd: no key keeps a line without waiters, whatever the waiters did, and even
// if the key is not used again.
func TestLinesEnd(t *testing.T) {
	l, _, clk := newTestLimiter(t, SlidingWindow{Limit: 2, Window: time.Second})
	for i := range 1000 {
		key := fmt.Sprint(i)
		var line []*Reservation
		for range 4 {
			r, err := l.Reserve(t.Context(), key, 1)
			require.NoError(t, err)
			line = append(line, r)
		}
		for j := range i % 5 {
			line[(i+j)%4].Cancel()
		}
	}
	clk.Advance(time.Hour)
	assert.NotZero(t, l.lines.count.Load())
	for i := range 20_000 { // reservations of other keys remove lines that are over
		_, err := l.Reserve(t.Context(), fmt.Sprint("other ", i%400), 1)
		require.NoError(t, err)
	}
	clk.Advance(10 * time.Hour)
	assert.LessOrEqual(t, l.lines.count.Load(), int64(400+100))
	for i := range l.lines.all() {
		for key, ln := range l.lines.all()[i].keys {
			assert.True(t, ln.Over(kernel.InstantOf(clk.Now())), key)
		}
	}
	l, _, _ = newTestLimiter(t, TokenBucket{Rate: PerSecond(1)})
	r, err := l.Reserve(t.Context(), "key", 1)
	require.NoError(t, err)
	r.Cancel()
	assert.Zero(t, l.lines.count.Load())
	_, err = l.Reserve(t.Context(), "key", 1)
	require.NoError(t, err)
	require.NoError(t, l.Reset(t.Context(), "key"))
	assert.Zero(t, l.lines.count.Load())
}

// A failingStore fails to cancel.
type failingStore struct {
	*MemoryStore
	fails atomic.Bool
	drops atomic.Bool // whether it fails without cancelling
	calls atomic.Int64
	most  atomic.Int64  // the most events to cancel in one call
	gate  chan struct{} // if not nil, cancelling waits for it
}

type failingStates struct {
	States
	store *failingStore
}

func (s *failingStore) Open(name string, t *Transition) (States, error) {
	states, err := s.MemoryStore.Open(name, t)
	return failingStates{states, s}, err
}

func (s failingStates) Apply(ctx context.Context, key string, t *Transition, req Request) (Result, error) {
	if req.Op == OpCancel {
		s.store.calls.Add(1)
		s.store.most.Store(max(s.store.most.Load(), int64(kernel.Asked(req.Grant))))
		if s.store.gate != nil {
			<-s.store.gate
		}
		if s.store.drops.Load() {
			return Result{}, errors.New("the request was lost")
		}
		res, err := s.States.Apply(ctx, key, t, req)
		if s.store.fails.Load() {
			return Result{}, errors.New("the answer was lost")
		}
		return res, err
	}
	return s.States.Apply(ctx, key, t, req)
}

// TestFailedCancelIsTold checks that observers learn of a Cancel that the store has failed, and
// callers of a Settle that is one.
func TestFailedCancelIsTold(t *testing.T) {
	for name, policy := range map[string]FailurePolicy{"open": FailOpen, "closed": FailClosed, "fallback": Fallback(Must(New(Unlimited{})))} {
		t.Run(name, func(t *testing.T) {
			var seen []Observation
			store := &failingStore{MemoryStore: NewMemoryStore()}
			store.drops.Store(true)
			l, err := New(TokenBucket{Rate: PerHour(1)}, WithStore(store), WithName("test"), WithClock(clock.NewMock()), WithFailurePolicy(policy), WithFailureLog(nil),
				WithObserver(ObserverFunc(func(_ context.Context, o Observation) { seen = append(seen, o) })))
			require.NoError(t, err)
			last := func() Observation { return seen[len(seen)-1] }
			require.True(t, l.Allow("key"))

			r, err := l.Reserve(t.Context(), "key", 1)
			require.NoError(t, err)
			r.Cancel()
			assert.Equal(t, CallCancel, last().Call)
			assert.Equal(t, Failed, last().Outcome)
			require.ErrorContains(t, last().Err, "the request was lost")

			r, err = l.Reserve(t.Context(), "key", 1)
			require.NoError(t, err)
			d, err := r.Settle(t.Context(), 0)
			require.ErrorContains(t, err, "the request was lost")
			assert.True(t, d.Degraded)
			assert.Equal(t, name == "open", d.Allowed)
			assert.Equal(t, CallSettle, last().Call)
			assert.Equal(t, Failed, last().Outcome)

			store.drops.Store(false)
			r, err = l.Reserve(t.Context(), "key", 1)
			require.NoError(t, err)
			r.Cancel()
			assert.Equal(t, Counted, last().Outcome)
			assert.NoError(t, last().Err)
		})
	}
}

// TestLinesGiveMemoryBack: the memory of a flood of keys with reservations is released
// while reservations of a single key follow.
func TestLinesGiveMemoryBack(t *testing.T) {
	budget.Alone(t)
	const many = 100_000
	l, store, clk := newTestLimiter(t, TokenBucket{Rate: PerSecond(1)})
	var m runtime.MemStats
	heap := func() int64 {
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before, total := heap(), m.TotalAlloc
	for i := range many {
		_, err := l.Reserve(t.Context(), fmt.Sprint(i), 1)
		require.NoError(t, err)
	}
	runtime.ReadMemStats(&m)
	assert.Less(t, (m.TotalAlloc-total)/many, uint64(3000), "bytes for each, which do not depend on how many others there are")
	for range many {
		clk.Advance(time.Minute)
		_, err := l.Reserve(t.Context(), "key", 1)
		require.NoError(t, err)
	}
	store.Shrink()
	assert.LessOrEqual(t, l.lines.count.Load(), int64(1))
	assert.Less(t, heap()-before, int64(1<<20))
	runtime.KeepAlive(l)
}

// TestBusyLineStaysShort: a line that is never over keeps no reservation whose turn has passed,
// although some are cancelled.
func TestBusyLineStaysShort(t *testing.T) {
	l, _, clk := newTestLimiter(t, TokenBucket{Rate: PerSecond(1)})
	for i := range 100 {
		r, err := l.Reserve(t.Context(), "key", 1)
		require.NoError(t, err)
		if i%10 == 5 {
			r.Cancel()
		} else if i > 10 {
			clk.Advance(time.Second)
		}
	}
	assert.LessOrEqual(t, l.lines.shard("key").keys["key"].Len(), 15)
}

// TestCancelThatFails: if it is unknown whether the store has cancelled, nothing is
// given back twice.
func TestCancelThatFails(t *testing.T) {
	for _, alg := range append([]Algorithm{
		FixedWindow{Limit: 10, Window: time.Second},
		All{FixedWindow{Limit: 10, Window: time.Second}, RollingWindow{Quota: 10, Window: time.Second, Period: time.Second}},
	}, everyWidth...) {
		store := &failingStore{MemoryStore: NewMemoryStore()}
		clk := stepclock.New()
		l, err := New(alg, WithStore(store), WithName("test"), WithClock(clk))
		require.NoError(t, err)
		require.True(t, l.AllowN("key", 10))
		var line []*Reservation
		for range 3 {
			r, err := l.Reserve(t.Context(), "key", 3)
			require.NoError(t, err)
			line = append(line, r)
		}
		stays := line[0].Delay()
		store.fails.Store(true)
		line[2].Cancel()
		store.fails.Store(false)
		for _, r := range line[1:] {
			r.Cancel()
		}
		d, err := l.Peek(t.Context(), "key")
		require.NoError(t, err)
		assert.GreaterOrEqual(t, d.RetryAfter, stays, "%T", alg)
		r, err := l.Reserve(t.Context(), "key", 3)
		require.NoError(t, err)
		before := r.Delay()
		r.Cancel()
		r, err = l.Reserve(t.Context(), "key", 3)
		require.NoError(t, err)
		assert.Equal(t, before, r.Delay(), "%T: later reservations are cancelled", alg)
		r.Cancel()
		clk.Advance(stays)
		d, err = l.Peek(t.Context(), "key")
		require.NoError(t, err)
		assert.LessOrEqual(t, d.Remaining, 7, "%T: the first one counts", alg)
	}
}

// TestCancelAfterOneThatFails: after a cancellation whose outcome is unknown, those of other
// reservations are sent, except on rings. At most the one that failed stays.
func TestCancelAfterOneThatFails(t *testing.T) {
	const limit, many = 10, 30
	for name, tt := range map[string]struct {
		alg   Algorithm
		rings bool
	}{
		"fixed":        {FixedWindow{Limit: limit, Window: time.Second}, false},
		"log":          {SlidingLog{Limit: limit, Window: time.Second}, false},
		"bucket":       {TokenBucket{Rate: PerSecond(limit)}, false},
		"all":          {All{FixedWindow{Limit: limit, Window: time.Second}, SlidingLog{Limit: limit, Window: time.Second}}, false},
		"all, rolling": {All{FixedWindow{Limit: limit, Window: time.Second}, RollingWindow{Quota: limit, Window: time.Second, Period: time.Second}}, true},
		"sliding":      {SlidingWindow{Limit: limit, Window: time.Second}, true},
	} {
		for _, executed := range []bool{false, true} {
			for _, failing := range []int{0, many / 2, many - 1} {
				store := &failingStore{MemoryStore: NewMemoryStore()}
				l, err := New(tt.alg, WithStore(store), WithName("test"), WithClock(stepclock.New()))
				require.NoError(t, err)
				require.True(t, l.AllowN("key", limit))
				before, err := l.Peek(t.Context(), "key")
				require.NoError(t, err)
				var line []*Reservation
				for range many {
					r, err := l.Reserve(t.Context(), "key", 1)
					require.NoError(t, err)
					line = append(line, r)
				}
				turn := line[failing].Delay()
				store.fails.Store(true)
				store.drops.Store(!executed)
				line[failing].Cancel()
				store.fails.Store(false)
				store.drops.Store(false)
				calls := store.calls.Load()
				for _, r := range slices.Backward(line) {
					r.Cancel()
				}
				if tt.rings {
					assert.Equal(t, calls, store.calls.Load(), name)
					continue
				}
				assert.Greater(t, store.calls.Load(), calls, name)
				next, err := l.Reserve(t.Context(), "key", 1)
				require.NoError(t, err)
				assert.LessOrEqual(t, next.Delay(), turn+time.Second/limit, "%s: after %d of %d", name, failing, many)
				assert.GreaterOrEqual(t, next.Delay(), before.RetryAfter, "%s: nothing is given back twice", name)
				if sent := calls > 0; sent && !executed { // a bucket waits for those behind
					assert.GreaterOrEqual(t, next.Delay(), turn, "%s: %d is still reserved", name, failing)
				}
			}
		}
	}
}

// TestManyCancels: a long line that is cancelled together is sent in several calls, each of
// which bounds the time that the store takes. None is lost.
func TestManyCancels(t *testing.T) {
	const many = 10 * manyTogether
	for _, alg := range append([]Algorithm{
		FixedWindow{Limit: 10, Window: time.Second},
		All{TokenBucket{Rate: PerSecond(10)}, FixedWindow{Limit: 10, Window: time.Second}, SlidingLog{Limit: 10, Window: time.Second}},
	}, everyWidth...) {
		synctest.Test(t, func(t *testing.T) {
			store := &failingStore{MemoryStore: NewMemoryStore(), gate: make(chan struct{})}
			l, err := New(alg, WithStore(store), WithName("test"))
			require.NoError(t, err)
			require.True(t, l.Allow("key"))
			before, err := l.Peek(t.Context(), "key")
			require.NoError(t, err)
			var wg sync.WaitGroup
			for range many {
				r, err := l.Reserve(t.Context(), "key", 1)
				if errors.Is(err, ErrQueueFull) {
					break
				}
				require.NoError(t, err)
				wg.Go(r.Cancel)
			}
			synctest.Wait()
			close(store.gate)
			wg.Wait()
			assert.LessOrEqual(t, store.most.Load(), int64(manyTogether))
			after, err := l.Peek(t.Context(), "key")
			require.NoError(t, err)
			assert.Equal(t, before, after, "%T", alg)
		})
	}
}

// TestCancelsShareCalls: concurrent cancellations share a call of the store.
func TestCancelsShareCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &failingStore{MemoryStore: NewMemoryStore(), gate: make(chan struct{})}
		l, err := New(SlidingWindow{Limit: 2, Window: time.Second}, WithStore(store), WithName("test"))
		require.NoError(t, err)
		before, err := l.Peek(t.Context(), "key")
		require.NoError(t, err)
		var wg sync.WaitGroup
		for range 100 {
			r, err := l.Reserve(t.Context(), "key", 1)
			require.NoError(t, err)
			wg.Go(r.Cancel)
		}
		synctest.Wait()
		close(store.gate)
		wg.Wait()
		assert.LessOrEqual(t, store.calls.Load(), int64(3))
		after, err := l.Peek(t.Context(), "key")
		require.NoError(t, err)
		assert.Equal(t, before.Remaining, after.Remaining)
	})
}

// TestUndoOfSeveralLimits: a call that has cancelled something is the last one.
func TestUndoOfSeveralLimits(t *testing.T) {
	limits := &ownLimits{}
	limits.set("key", TokenBucket{Rate: PerMinute(1)})
	limits.set("other", TokenBucket{Rate: PerHour(1)})
	made, err := New(Unlimited{}, WithLimits(limits.lookup), WithClock(stepclock.New()))
	require.NoError(t, err)
	l := made.(*limiter)
	claims := make(map[string]*Reservation)
	for range 2 {
		for _, key := range []string{"key", "other"} {
			r, err := l.Reserve(t.Context(), key, 1)
			require.NoError(t, err)
			claims[key] = r
		}
	}
	c := claims["key"]
	out, err := l.undo("key", []*Transition{c.by, claims["other"].by}, c.line.Cancel([]*kernel.Waiter{c.waiter}, 0))
	require.NoError(t, err)
	assert.True(t, out.Any())
}
