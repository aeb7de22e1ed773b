package casstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

// A table is a database in a map. Each of its methods first does what its meanwhile does.
type table struct {
	meanwhile func(ctx context.Context, method string) error

	mu     sync.Mutex // protects the fields below
	states map[string]string
	asked  map[string]int // how many calls on a key there are
	most   int            // the most of asked
}

func newTable(meanwhile func(ctx context.Context, method string) error) *table {
	return &table{meanwhile: meanwhile, states: map[string]string{}, asked: map[string]int{}}
}

// begin is done when a method begins, and its result when it ends.
func (db *table) begin(ctx context.Context, method, key string) (end func(), err error) {
	db.mu.Lock()
	db.asked[key]++
	db.most = max(db.most, db.asked[key])
	db.mu.Unlock()
	end = func() {
		db.mu.Lock()
		db.asked[key]--
		db.mu.Unlock()
	}
	ended := true
	defer func() {
		if ended {
			end()
		}
	}()
	err = db.meanwhile(ctx, method)
	ended = false
	return end, err
}

var errConflict = errors.New("another process was faster")

func (db *table) Get(ctx context.Context, key string) ([]byte, error) {
	end, err := db.begin(ctx, "Get", key)
	defer end()
	db.mu.Lock()
	defer db.mu.Unlock()
	return []byte(db.states[key]), err
}

func (db *table) CompareAndSwap(ctx context.Context, key string, old, state []byte, _ time.Time) (bool, error) {
	end, err := db.begin(ctx, "CompareAndSwap", key)
	defer end()
	db.mu.Lock()
	defer db.mu.Unlock()
	switch {
	case errors.Is(err, errConflict):
		return false, nil
	case err != nil || db.states[key] != string(old):
		return false, err
	}
	db.states[key] = string(state)
	return true, nil
}

func (db *table) Delete(ctx context.Context, key string) error {
	end, err := db.begin(ctx, "Delete", key)
	defer end()
	if err != nil {
		return err
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	delete(db.states, key)
	return nil
}

// check fails the test if the counts of s are not what they count.
func check(t *testing.T, s *Store) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	behind := 0
	for key, q := range s.queues {
		callers := q.waiting.Len()
		for _, c := range q.calls {
			if !c.left.Load() {
				callers++
			}
		}
		require.Equal(t, callers, q.callers, key)
		if callers == 0 {
			behind++
		}
	}
	require.Equal(t, behind, s.behind)
}

// limiter is the limit of the tests: events enough for all, so that those granted are counted exactly.
func limiter(t *testing.T, s *Store, timeout time.Duration) (limit.States, *limit.Limit, func() step.Request) {
	t.Helper()
	spec := limit.Spec{Kind: limit.FixedWindow, Numbers: [4]uint64{1 << 30, uint64(1 << 60)}}
	l, err := limit.New(spec, kernel.InMemory, nil)
	require.NoError(t, err)
	states, err := s.Open("test", l, timeout)
	require.NoError(t, err)
	return states, l, func() step.Request { return step.Request{N: 1}.At(time.Unix(1<<31, 0)) }
}

func TestStore_History(t *testing.T) {
	for seed := range budget.Seeds(t, 40) {
		synctest.Test(t, func(t *testing.T) { testHistory(t, rand.New(rand.NewPCG(seed, 1)), seed%2 == 0) })
	}
}

// testHistory makes calls at random instants, some of which leave, on a database that is slow, hangs, conflicts,
// fails, panics and ends goroutines. resets says whether some are Resets; if not, what is granted is counted.
func testHistory(t *testing.T, rnd *rand.Rand, resets bool) {
	var mu sync.Mutex // protects rnd
	random := func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return rnd.IntN(n)
	}
	db := newTable(func(ctx context.Context, method string) error {
		switch kind := random(20); kind {
		case 0, 1, 2:
			time.Sleep(time.Duration(random(30)) * time.Millisecond)
		case 3:
			time.Sleep(time.Second) // it hangs, and does not heed the context
		case 4:
			<-ctx.Done()
			return ctx.Err()
		case 5, 6, 7, 8:
			if method == "CompareAndSwap" {
				return errConflict
			}
		case 9:
			return io.EOF
		case 10:
			panic("odd")
		case 11:
			runtime.Goexit()
		}
		return nil
	})
	s := New(db)
	states, l, one := limiter(t, s, 50*time.Millisecond)
	const calls, keys = 400, 3
	var granted, left [keys]int64
	var wg sync.WaitGroup
	for range calls {
		key, leaves, reset := random(keys), time.Duration(random(100))*time.Millisecond, resets && random(5) == 0
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), leaves)
			defer cancel()
			var err error
			if reset {
				err = states.Reset(ctx, fmt.Sprint(key))
			} else if _, err = states.Apply(ctx, fmt.Sprint(key), l, one()); err == nil {
				atomic.AddInt64(&granted[key], 1)
			}
			if err != nil {
				atomic.AddInt64(&left[key], 1)
			}
		})
		time.Sleep(time.Duration(random(4)) * time.Millisecond)
		check(t, s)
	}
	wg.Wait()
	synctest.Wait()
	check(t, s)
	time.Sleep(time.Minute) // what hangs has returned
	synctest.Wait()
	require.Empty(t, s.queues)
	require.Zero(t, s.behind)
	require.LessOrEqual(t, db.most, 1, "one goroutine for a key")

	db.meanwhile = func(context.Context, string) error { return nil }
	for key := range keys {
		a, err := states.Apply(t.Context(), fmt.Sprint(key), l, one())
		require.NoError(t, err)
		if spent := int64(1<<30-a.Remaining) - 1; !resets {
			// A caller that left, or that was told of a failure, cannot know whether its event was written before: each of
			// them counts once or not at all, in any combination.
			require.GreaterOrEqual(t, spent, granted[key])
			require.LessOrEqual(t, spent, granted[key]+left[key])
		}
	}
}

// A panic is an error of those who still wait, even if the one who came first has left.
func TestStore_PanicAfterTheFirstHasLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := newTable(func(context.Context, string) error {
			time.Sleep(10 * time.Millisecond)
			panic("odd")
		})
		s := New(db)
		states, l, one := limiter(t, s, time.Second)
		var returned atomic.Int64
		take := func(ctx context.Context, want string) {
			go func() {
				_, err := states.Apply(ctx, "key", l, one())
				assert.ErrorContains(t, err, want)
				returned.Add(1)
			}()
			synctest.Wait()
		}
		take(t.Context(), "odd")
		leaving, leave := context.WithCancel(t.Context())
		take(leaving, "canceled") // these share a read, and this one comes first
		take(t.Context(), "odd")
		take(t.Context(), "odd")
		time.Sleep(15 * time.Millisecond)
		assert.EqualValues(t, 1, returned.Load())
		leave()
		synctest.Wait()
		assert.EqualValues(t, 2, returned.Load())
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		assert.EqualValues(t, 4, returned.Load())
	})
}

// Swaps that fail for long keep nothing of callers that have left, once their round has ended.
func TestStore_ConflictsForgetWhoHasLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := newTable(func(_ context.Context, method string) error {
			if method == "CompareAndSwap" {
				time.Sleep(time.Millisecond)
				return errConflict
			}
			return nil
		})
		s := New(db)
		states, l, one := limiter(t, s, time.Second)
		stay, end := context.WithCancel(t.Context())
		for i := range 4 { // somebody waits at any time
			go func() {
				time.Sleep(time.Duration(i) * 250 * time.Millisecond)
				for stay.Err() == nil {
					_, _ = states.Apply(stay, "key", l, one())
				}
			}()
		}
		time.Sleep(2 * time.Second)
		type mark struct{ _ [1024]byte }
		var left weak.Pointer[mark]
		func() {
			m := new(mark)
			left = weak.Make(m)
			type markKey struct{}
			ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), markKey{}, m), 50*time.Millisecond)
			defer cancel()
			_, err := states.Apply(ctx, "key", l, one())
			assert.ErrorIs(t, err, context.DeadlineExceeded)
		}()
		time.Sleep(2 * time.Second)
		runtime.GC()
		runtime.GC()
		assert.Nil(t, left.Value())
		end()
		time.Sleep(time.Second)
	})
}

// A Reset that comes between two attempts to swap waits for the round, and those after it for the Reset.
func TestStore_ResetBetweenSwaps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var swaps int
		db := newTable(func(_ context.Context, method string) error {
			time.Sleep(10 * time.Millisecond)
			if method == "CompareAndSwap" {
				if swaps++; swaps < 3 {
					return errConflict
				}
			}
			return nil
		})
		s := New(db)
		states, l, one := limiter(t, s, time.Hour)
		var mu sync.Mutex // protects the following
		var order []string
		remaining := 0
		call := func(name string, f func() error) {
			go func() {
				assert.NoError(t, f())
				mu.Lock()
				defer mu.Unlock()
				order = append(order, name)
			}()
			synctest.Wait()
		}
		take := func() error {
			a, err := states.Apply(t.Context(), "key", l, one())
			mu.Lock()
			defer mu.Unlock()
			remaining = a.Remaining
			return err
		}
		call("take", take)
		call("reset", func() error { return states.Reset(t.Context(), "key") })
		call("take", take)
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Equal(t, []string{"take", "reset", "take"}, order)
		assert.Equal(t, 1<<30-1, remaining)
		assert.Equal(t, 4, swaps, "the last one was not in the first round")
	})
}

// A round goes on after the deadlines of its callers, until their timeouts. The limiter learns of a failure then,
// and of none if the caller was cancelled, or has learnt of it itself.
func TestStore_LateFailure(t *testing.T) {
	const timeout, deadline = time.Second, 10 * time.Millisecond
	broken := errors.New("no such table")
	takes := func(d time.Duration, err error) func(context.Context) error {
		return func(ctx context.Context) error {
			select {
			case <-time.After(d):
				return err
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	for name, tt := range map[string]struct {
		method func(ctx context.Context) error
		ends   bool // whether the caller is cancelled, and its deadline is far
		want   string
		at     time.Duration
	}{
		"well":          {takes(20*time.Millisecond, nil), false, "", 0},
		"fails":         {takes(20*time.Millisecond, broken), false, "no such table", 20 * time.Millisecond},
		"fails in time": {takes(deadline/2, broken), false, "", 0},
		"silent":        {takes(time.Hour, nil), false, "no answer within 1s: context deadline exceeded", timeout},
		"deaf": {func(context.Context) error { time.Sleep(time.Hour); return broken }, false,
			"no answer within 1s: context deadline exceeded", timeout},
		"fails, cancelled":  {takes(20*time.Millisecond, broken), true, "", 0},
		"silent, cancelled": {takes(time.Hour, nil), true, "", 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := New(newTable(func(ctx context.Context, method string) error {
				if method == "Get" {
					return tt.method(ctx)
				}
				return nil
			}))
			st, l, one := limiter(t, s, timeout)
			begin := time.Now()
			told := make(chan string, 2)
			st.(*states).OnLateFailure(func(_ string, err error) {
				told <- err.Error()
				assert.Equal(t, tt.at, time.Since(begin), name)
			})
			ctx, cancel := context.WithTimeout(t.Context(), deadline)
			if tt.ends {
				ctx, cancel = context.WithCancel(t.Context())
				time.AfterFunc(deadline, cancel)
			}
			defer cancel()
			_, err := st.Apply(ctx, "key", l, one())
			assert.Error(t, err, name)
			time.Sleep(2 * time.Hour)
			if tt.want != "" {
				assert.Equal(t, tt.want, <-told, name)
			}
			assert.Empty(t, told, name)
			check(t, s)
			assert.Empty(t, s.queues, name)
		})
	}
}

// A caller that leaves before its call is in a round does not end the round of others, which have left as well.
func TestStore_LeftBehindARound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(newTable(func(ctx context.Context, _ string) error {
			select {
			case <-time.After(60 * time.Millisecond):
			case <-ctx.Done():
			}
			return ctx.Err()
		}))
		st, l, one := limiter(t, s, time.Second)
		st.(*states).OnLateFailure(func(_ string, err error) { t.Error(err) })
		for range 5 {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			_, err := st.Apply(ctx, "key", l, one())
			assert.ErrorIs(t, err, context.DeadlineExceeded)
			cancel()
		}
		time.Sleep(time.Minute)
		check(t, s)
		a, err := st.Apply(t.Context(), "key", l, step.Request{Op: step.OpPeek}.At(time.Unix(1<<31, 0)))
		require.NoError(t, err)
		assert.Equal(t, 1<<30, a.Remaining)
	})
}

// A round that all callers have left goes on until the last of their timeouts has passed, and the limiter learns of
// each.
func TestStore_LastOfThoseWhoHaveLeft(t *testing.T) {
	const timeout, apart = 100 * time.Millisecond, 20 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		var rounds atomic.Int64
		var endedAt time.Duration
		s := New(newTable(func(ctx context.Context, method string) error {
			switch {
			case method != "Get":
			case rounds.Add(1) == 1:
				time.Sleep(2 * apart)
			default:
				<-ctx.Done()
				endedAt = time.Since(begin)
				return ctx.Err()
			}
			return nil
		}))
		st, l, one := limiter(t, s, timeout)
		late := make(chan time.Duration, 4)
		st.(*states).OnLateFailure(func(string, error) { late <- time.Since(begin) })
		go func() {
			_, err := st.Apply(t.Context(), "key", l, one())
			assert.NoError(t, err)
		}()
		synctest.Wait()
		for range 3 { // in the second round
			time.Sleep(apart / 2)
			ctx, cancel := context.WithDeadline(t.Context(), begin.Add(3*apart))
			defer cancel()
			go func() { _, _ = st.Apply(ctx, "key", l, one()) }()
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Equal(t, apart*3/2+timeout, endedAt)
		for i := range time.Duration(3) {
			assert.Equal(t, (i+1)*apart/2+timeout, <-late)
		}
		assert.Empty(t, late)
		check(t, s)
		assert.Empty(t, s.queues)
	})
}

// A timer of a caller that has left does not outlast its round.
func TestStore_NoTimerIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		s := New(newTable(func(context.Context, string) error { <-answer; return nil }))
		st, l, one := limiter(t, s, time.Hour)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, err := st.Apply(ctx, "key", l, one())
		require.ErrorIs(t, err, context.DeadlineExceeded)
		c := s.queues["test:key"].calls[0]
		timer := c.expires
		close(answer)
		synctest.Wait()
		assert.Nil(t, c.expires)
		assert.False(t, timer.Stop(), "it is stopped")
		assert.Empty(t, s.queues)
	})
}

// While callers of many keys have left, rounds that nobody waits for end at once: a client that chooses short
// deadlines does not keep others from asking a database that heeds contexts.
func TestStore_ManyHaveLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(newTable(func(ctx context.Context, _ string) error {
			<-ctx.Done()
			return ctx.Err()
		}))
		st, l, one := limiter(t, s, time.Second)
		var failures atomic.Int64
		st.(*states).OnLateFailure(func(_ string, err error) {
			assert.NotErrorIs(t, err, context.Canceled)
			failures.Add(1)
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		for i := range 2 * mostBehind {
			go func() { _, _ = st.Apply(ctx, fmt.Sprint(i), l, one()) }()
		}
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		check(t, s)
		s.mu.Lock()
		assert.Equal(t, mostBehind/2, s.behind)
		s.mu.Unlock()
		time.Sleep(time.Minute)
		check(t, s)
		assert.Empty(t, s.queues)
		assert.EqualValues(t, mostBehind/2, failures.Load())
	})
}

// A round that all have left is not tried again, and those who wait get the next one.
func TestStore_RoundThatAllHaveLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var swaps atomic.Int64
		var stuck atomic.Bool
		stuck.Store(true)
		db := newTable(func(_ context.Context, method string) error {
			if method == "CompareAndSwap" {
				time.Sleep(10 * time.Millisecond)
				if swaps.Add(1); stuck.Load() {
					return errConflict
				}
			}
			return nil
		})
		s := New(db)
		states, l, one := limiter(t, s, time.Hour)
		impatient, err := s.Open("test", l, time.Second)
		require.NoError(t, err)
		take := func(states limit.States, want error) {
			go func() {
				_, err := states.Apply(t.Context(), "key", l, one())
				assert.ErrorIs(t, err, want)
			}()
			synctest.Wait()
		}
		take(impatient, context.DeadlineExceeded)
		time.Sleep(time.Second - 1)
		require.Greater(t, swaps.Load(), int64(5), "it is tried again and again")
		tried := swaps.Load()
		take(states, nil)
		time.Sleep(15 * time.Millisecond)
		stuck.Store(false)
		time.Sleep(time.Minute)
		assert.LessOrEqual(t, swaps.Load(), tried+3, "the one in progress, and two of the next round, the first of which may have met the stuck table")
		check(t, s)
		assert.Empty(t, s.queues)
		a, err := states.Apply(t.Context(), "key", l, step.Request{Op: step.OpPeek}.At(time.Unix(1<<31, 0)))
		require.NoError(t, err)
		assert.Equal(t, 1<<30-1, a.Remaining, "the one that has left is not applied")

		stuck.Store(true)
		take(impatient, context.DeadlineExceeded)
		time.Sleep(time.Second)
		tried = swaps.Load()
		time.Sleep(time.Minute)
		assert.LessOrEqual(t, swaps.Load(), tried+1)
		check(t, s)
		assert.Empty(t, s.queues)
	})
}

// TestStore_ContextOfARound: the context of a round's calls of the database lasts until these have been answered, also
// if their callers' contexts do not end, and no longer.
func TestStore_ContextOfARound(t *testing.T) {
	var of context.Context
	db := newTable(func(ctx context.Context, _ string) error {
		of = ctx
		return ctx.Err()
	})
	states, l, one := limiter(t, New(db), time.Hour)
	for range 2 {
		_, err := states.Apply(context.Background(), "key", l, one())
		require.NoError(t, err)
		require.ErrorIs(t, of.Err(), context.Canceled, "what it has started is over")
	}
	require.NoError(t, states.Reset(context.Background(), "key"))
	require.ErrorIs(t, of.Err(), context.Canceled)
}
