package rules

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

// A slowSource answers after a while, or never, whether or not its context has ended.
type slowSource struct {
	takes   atomic.Int64 // a time.Duration
	hangs   chan struct{}
	loads   atomic.Int32
	at      atomic.Int32
	most    atomic.Int32
	limit   atomic.Int64
	heeding bool
}

func (s *slowSource) Load(ctx context.Context) ([]Rule, error) {
	s.loads.Add(1)
	s.most.Store(max(s.most.Load(), s.at.Add(1)))
	defer s.at.Add(-1)
	limit := int(s.limit.Load()) // as it was when the load began
	switch {
	case s.hangs != nil:
		<-s.hangs
	case s.heeding:
		select {
		case <-time.After(time.Duration(s.takes.Load())):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	default:
		time.Sleep(time.Duration(s.takes.Load()))
	}
	return []Rule{limited("r", "/x", limit, "")}, nil
}

// TestReloadEndsWithItsContext checks that Reload returns when its context ends, even
// while another load runs and even if the source ignores contexts.
func TestReloadEndsWithItsContext(t *testing.T) {
	for _, heeding := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			src := &slowSource{heeding: heeding}
			src.limit.Store(1)
			s, err := New(t.Context(), src, WithInterval(0))
			require.NoError(t, err)
			src.takes.Store(int64(3 * time.Second))
			var wg sync.WaitGroup
			wg.Go(func() { assert.NoError(t, s.Reload(t.Context())) })
			synctest.Wait()
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			start := time.Now()
			require.ErrorIs(t, s.Reload(ctx), context.DeadlineExceeded)
			assert.Equal(t, 100*time.Millisecond, time.Since(start))
			require.ErrorIs(t, s.Reload(ctx), context.DeadlineExceeded)
			assert.NoError(t, s.Status().Err, "a caller that left says nothing about the source")
			wg.Wait()
			assert.Equal(t, 3*time.Second, time.Since(start))
			require.NoError(t, s.Close())
			assert.EqualValues(t, 2, src.loads.Load(), "the load that no caller waited for was not made")
		})
	}
}

// TestReloadsAtOnce checks that concurrent calls share the load after the running one,
// and so see every edit made before they began.
func TestReloadsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &slowSource{}
		src.limit.Store(1)
		s, err := New(t.Context(), src, WithInterval(0))
		require.NoError(t, err)
		src.takes.Store(int64(500 * time.Millisecond))
		start := time.Now()
		var wg sync.WaitGroup
		wg.Go(func() { assert.NoError(t, s.Reload(t.Context())) })
		synctest.Wait()
		src.limit.Store(7)
		for range 8 {
			wg.Go(func() {
				assert.NoError(t, s.Reload(t.Context()))
				a, err := s.Take(t.Context(), "ann", "GET", "/x", 0)
				assert.NoError(t, err)
				assert.Equal(t, 7, a.Rule.Limit)
			})
		}
		wg.Wait()
		assert.Equal(t, time.Second, time.Since(start))
		assert.EqualValues(t, 3, src.loads.Load())
		assert.EqualValues(t, 1, src.most.Load(), "one at a time")
		require.NoError(t, s.Close())
	})
}

// TestSourceThatHangs checks that, while the source does not answer, all methods return
// in time, the source is not called again, and Close does not wait for it.
func TestSourceThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &slowSource{hangs: make(chan struct{})}
		start := time.Now()
		_, err := New(t.Context(), src, WithTimeout(time.Second))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, time.Second, time.Since(start))

		src.limit.Store(9)
		var reported atomic.Int32
		s, err := New(t.Context(), src, WithTimeout(time.Second), WithInterval(30*time.Second), WithInitial(limited("r", "/x", 2, "")),
			WithOnError(func(error) { reported.Add(1) }))
		require.NoError(t, err)
		assert.EqualValues(t, 1, reported.Load())
		assert.ErrorIs(t, s.Status().Err, context.DeadlineExceeded)
		assert.Equal(t, 1, granted(t, s, "ann", "/x", 1))
		time.Sleep(10 * time.Minute)
		assert.Greater(t, reported.Load(), int32(15))
		assert.EqualValues(t, 2, src.loads.Load(), "one of each set")
		start = time.Now()
		require.ErrorIs(t, s.Reload(t.Context()), context.DeadlineExceeded)
		assert.LessOrEqual(t, time.Since(start), 2*time.Second, "for its own load, and perhaps that of the interval")

		// Its late answer is put in force.
		close(src.hangs)
		synctest.Wait()
		assert.Equal(t, 9, granted(t, s, "ann", "/x", 20))
		assert.NoError(t, s.Status().Err)
		require.NoError(t, s.Reload(t.Context()))

		src.hangs = make(chan struct{})
		done := make(chan error, 2)
		for range 2 {
			go func() { done <- s.Reload(t.Context()) }()
			synctest.Wait()
		}
		start = time.Now()
		require.NoError(t, s.Close())
		require.Error(t, <-done)
		require.Error(t, <-done)
		assert.Zero(t, time.Since(start))
		src.limit.Store(100)
		close(src.hangs)
		synctest.Wait()
		assert.Zero(t, granted(t, s, "ann", "/x", 20), "the rules stay those at the time of Close")
		assert.ErrorContains(t, s.Reload(t.Context()), "closed")
	})
}

// TestCloseByOnError checks that WithOnError's function may close the set, whatever the
// error is.
func TestCloseByOnError(t *testing.T) {
	for _, at := range []int32{1, 2, 3} { // the end of the first load, and the callers that wait for it
		synctest.Test(t, func(t *testing.T) {
			var loads, reported atomic.Int32
			hangs := make(chan struct{})
			defer close(hangs)
			made, closed := make(chan *Set, 1), make(chan struct{})
			s, err := New(t.Context(), SourceFunc(func(context.Context) ([]Rule, error) {
				if loads.Add(1) > 1 {
					<-hangs
				}
				return nil, nil
			}), WithTimeout(time.Second), WithInterval(30*time.Second), WithOnError(func(error) {
				if reported.Add(1) == at {
					assert.NoError(t, (<-made).Close())
					close(closed)
				}
			}))
			require.NoError(t, err)
			made <- s
			select {
			case <-closed:
			case <-time.After(time.Hour):
				t.Errorf("error %d: Close hangs", at)
			}
		})
	}
}

// TestLoadsGoOn checks that a load goes on when its caller has left, and that Close ends it.
func TestLoadsGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &slowSource{heeding: true}
		src.limit.Store(1)
		s, err := New(t.Context(), src, WithInterval(0), WithOnError(func(err error) { t.Error(err) }))
		require.NoError(t, err)
		src.takes.Store(int64(5 * time.Second))
		src.limit.Store(2)
		leave := func() {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			go func() { done <- s.Reload(ctx) }()
			synctest.Wait()
			cancel()
			require.ErrorIs(t, <-done, context.Canceled)
		}
		leave()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		assert.Equal(t, 2, granted(t, s, "ann", "/x", 5))
		leave()
		synctest.Wait()
		assert.EqualValues(t, 1, src.at.Load())
		start := time.Now()
		require.NoError(t, s.Close())
		assert.Zero(t, time.Since(start))
		synctest.Wait()
		assert.Zero(t, src.at.Load(), "the context of the source was canceled")
		assert.ErrorContains(t, s.Reload(t.Context()), "closed")
		assert.Error(t, s.Reload(nil)) //nolint:staticcheck // it is refused
	})
	assert.ErrorIs(t, new(Set).Reload(t.Context()), ratelimit.ErrInvalid)
	assert.NoError(t, new(Set).Close())
}

// TestLateAnswers checks that an answer after the timeout is put in force, and its invalid rules
// are reported. A late error is not reported again.
func TestLateAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var late loadResult
		var takes atomic.Int64
		source := SourceFunc(func(context.Context) ([]Rule, error) {
			time.Sleep(time.Duration(takes.Load()))
			return late.rules, late.err
		})
		var reported atomic.Int32
		s, err := New(t.Context(), source, WithTimeout(time.Second), WithInterval(0), WithOnError(func(error) { reported.Add(1) }))
		require.NoError(t, err)
		takes.Store(int64(3 * time.Second))
		load := func(rules []Rule, err error) {
			t.Helper()
			reported.Store(0)
			late = loadResult{rules, err}
			require.ErrorIs(t, s.Reload(t.Context()), context.DeadlineExceeded)
			time.Sleep(3 * time.Second)
			synctest.Wait()
		}
		load([]Rule{limited("r", "/x", 1, "")}, nil)
		assert.EqualValues(t, 1, reported.Load())
		assert.NoError(t, s.Status().Err)
		assert.Equal(t, 1, s.Status().Rules)
		load([]Rule{limited("r", "/x", 0, ""), limited("s", "/y", 1, "")}, nil)
		assert.EqualValues(t, 2, reported.Load())
		assert.ErrorContains(t, s.Status().Err, `rule "r": Limit is 0`)
		assert.Equal(t, 2, s.Status().Rules)
		load(nil, errors.New("no connection"))
		assert.EqualValues(t, 1, reported.Load())
		assert.ErrorIs(t, s.Status().Err, context.DeadlineExceeded)
		assert.Equal(t, 2, s.Status().Rules)

		// A load that begins while an earlier call hangs waits for that.
		late = loadResult{rules: []Rule{limited("r", "/x", 1, "")}}
		takes.Store(int64(1500 * time.Millisecond))
		require.ErrorIs(t, s.Reload(t.Context()), context.DeadlineExceeded)
		takes.Store(0)
		require.NoError(t, s.Reload(t.Context()))

		// Close ends a load that waits for an earlier call.
		takes.Store(int64(time.Hour))
		require.ErrorIs(t, s.Reload(t.Context()), context.DeadlineExceeded)
		done := make(chan error, 1)
		go func() { done <- s.Reload(t.Context()) }()
		synctest.Wait()
		start := time.Now()
		require.NoError(t, s.Close())
		assert.ErrorContains(t, <-done, "closed")
		assert.Zero(t, time.Since(start))
		time.Sleep(time.Hour) // until the source returns
	})
}

// TestEditsDuringLoads checks that Reload sees every edit made before it was called, with
// many concurrent calls.
func TestEditsDuringLoads(t *testing.T) {
	src := &slowSource{}
	src.limit.Store(1)
	s, err := New(t.Context(), src, WithInterval(time.Millisecond))
	require.NoError(t, err)
	var mu sync.Mutex
	written := 1
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				mu.Lock()
				written++
				mine := written
				src.limit.Store(int64(mine))
				mu.Unlock()
				assert.NoError(t, s.Reload(t.Context()))
				a, err := s.Take(t.Context(), "ann", "GET", "/x", 0)
				assert.NoError(t, err)
				assert.GreaterOrEqual(t, a.Rule.Limit, mine)
			}
		})
	}
	wg.Wait()
	require.NoError(t, s.Close())
	assert.EqualValues(t, 1, src.most.Load())
}

// TestBadRows checks that an invalid rule keeps its last valid version, that the other
// rules are loaded, and that Status says so.
func TestBadRows(t *testing.T) {
	src := &table{rules: []Rule{limited("r", "/x", 3, ""), limited("half", "/y", 0, "")}}
	var reported []error
	s, clk := newSet(t, src, WithOnError(func(err error) { reported = append(reported, err) }))
	var bad BadRules
	st := s.Status()
	require.ErrorAs(t, st.Err, &bad, "at the start, too")
	require.Len(t, bad, 1)
	assert.Equal(t, "half", bad[0].ID)
	var field *FieldError
	require.ErrorAs(t, st.Err, &field)
	assert.Equal(t, &FieldError{"half", "Limit", 0, "at least 1, unless the Algorithm is unlimited or blocked"}, field)
	st.Err = nil
	assert.Equal(t, Status{Version: 1, Loaded: clk.Now(), Rules: 1, Bad: 1}, st)
	assert.Equal(t, 3, granted(t, s, "ann", "/x", 5))
	assert.Equal(t, 5, granted(t, s, "ann", "/y", 5))

	load := func(wantBad int, rules ...Rule) {
		t.Helper()
		src.put(nil, rules...)
		err := s.Reload(t.Context())
		assert.Equal(t, wantBad, s.Status().Bad)
		if assert.Equal(t, wantBad > 0, err != nil, "%v", err); wantBad > 0 {
			require.ErrorAs(t, err, &bad)
			assert.Len(t, bad, wantBad)
			assert.Equal(t, err, s.Status().Err)
		} else {
			assert.NoError(t, s.Status().Err)
		}
	}
	load(0, limited("r", "/x", 4, ""), limited("half", "/y", 2, ""))
	assert.Equal(t, 1, granted(t, s, "ann", "/x", 5))
	assert.Equal(t, 2, granted(t, s, "ann", "/y", 5))
	load(2, limited("new", "/new", 1, ""), limited("r", "/x", -1, ""), limited("half", "GTE /y", 100, ""))
	assert.Equal(t, 3, s.Status().Rules)
	assert.Zero(t, granted(t, s, "ann", "/x", 5), "its last good version")
	assert.Zero(t, granted(t, s, "ann", "/y", 5))
	assert.Equal(t, 1, granted(t, s, "ann", "/new", 5), "the others are in force")
	load(1, limited("r", "/x", 0, ""))
	assert.Zero(t, granted(t, s, "ann", "/x", 5), "still")
	assert.Equal(t, 5, granted(t, s, "ann", "/y", 5), "this was deleted")
	load(0)
	assert.Equal(t, 5, granted(t, s, "ann", "/x", 5), "and so was this")
	load(1, limited("r", "/x", 0, ""))
	assert.Equal(t, 5, granted(t, s, "ann", "/x", 5), "what was deleted does not come back")
	assert.Len(t, reported, 4)

	a := limited("a", "/c", 1, "")
	// A rule without an ID may be any of the missing ones.
	load(0, a, limited("b", "/b", 1, ""))
	load(1, Rule{Call: "/c", Limit: 1, Window: time.Minute}, limited("b", "/b", 1, ""))
	assert.Equal(t, 2, s.Status().Rules)
	assert.Equal(t, 1, granted(t, s, "pam", "/c", 5))
	// The last valid version may be disabled.
	off := a
	off.Disabled = true
	load(0, off)
	load(1, limited("a", "/c", 0, ""))
	assert.Zero(t, s.Status().Rules)
}

// TestManyBadRows checks that the error's length is bounded.
func TestManyBadRows(t *testing.T) {
	var rules []Rule
	for i := range 1000 {
		rules = append(rules, limited(fmt.Sprint(i), "/x", 0, ""))
	}
	s, _ := newSet(t, Static(rules...))
	assert.Equal(t, 1000, s.Status().Bad)
	assert.Less(t, len(s.Status().Err.Error()), 1000)
	assert.ErrorContains(t, s.Status().Err, "and 995 more")
}

// TestSourceWithBadRules checks a source that returns BadRules, wrapped in its own error.
func TestSourceWithBadRules(t *testing.T) {
	odd := errors.New("odd")
	s, _ := newSet(t, SourceFunc(func(context.Context) ([]Rule, error) {
		return []Rule{limited("r", "/x", 1, "")}, fmt.Errorf("from the file: %w", BadRules{{"s", odd}})
	}))
	assert.Equal(t, 1, s.Status().Bad)
	assert.ErrorIs(t, s.Status().Err, odd)
	assert.Equal(t, 1, granted(t, s, "ann", "/x", 5))
}

// TestFileWithBadEntries checks that the valid entries are loaded.
func TestFileWithBadEntries(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rules.yaml")
	write := func(text string) { require.NoError(t, os.WriteFile(path, []byte(text), 0o600)) }
	write(`
- {id: a, call: /a, limit: 1, seconds: 60}
- {id: b, call: /b, limit: 1, seconds: 60}
- {id: c, call: /c, limit: 1, seconds: 60}`)
	s, err := New(t.Context(), File(path), WithInterval(0))
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, s.Status().Err)
	write(`
- {id: a, call: /a, limit: 2, seconds: 60}
- {id: b, call: /b, limit: 1.9, seconds: 60}
- {id: c, call: /c, limit: 5, seconds: 60, brust: 3}
- 42
- {id: d, call: /d, limit: 2, seconds: 60}`)
	err = s.Reload(t.Context())
	var bad BadRules
	require.ErrorAs(t, err, &bad)
	assert.Len(t, bad, 3)
	for _, want := range []string{"rules.yaml", "entry 2", `rule "b": limit is "1.9": it must be a whole number`, "brust", "entry 4"} {
		assert.ErrorContains(t, err, want)
	}
	for path, want := range map[string]int{"/a": 2, "/b": 1, "/c": 1, "/d": 2} {
		assert.Equal(t, want, granted(t, s, "ann", path, 9), path)
	}
	write(`- {id: a`)
	require.ErrorContains(t, s.Reload(t.Context()), "rules.yaml")
	assert.Equal(t, 4, s.Status().Rules, "a file that cannot be read changes nothing")
}
