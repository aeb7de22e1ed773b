package rules

import (
	"context"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

// eager locks out whoever sends an eleventh request within a second, for a minute.
var eager = Rule{
	ID: "eager", Call: "/search", Limit: 11, Window: time.Second,
	Algorithm: lockout, FirstLockout: time.Minute,
}

// TestLockout: an eleventh request within a second is granted, and locks its client out for a
// minute. Requests meanwhile do not prolong that.
func TestLockout(t *testing.T) {
	s, clk := newSet(t, Static(eager))
	h := s.Middleware()(http.NotFoundHandler())
	for range 11 {
		require.Equal(t, 404, get(h, "/search").Code)
	}
	for left := 60; left > 0; left-- {
		w := get(h, "/search")
		require.Equal(t, 429, w.Code, "%d s before the end", left)
		require.Equal(t, strconv.Itoa(left), w.Header().Get("Retry-After"))
		clk.Add(time.Second)
	}
	assert.Equal(t, 404, get(h, "/search").Code)
}

// TestNoLockout: a client that keeps to ten requests in each second is never locked out.
func TestNoLockout(t *testing.T) {
	s, clk := newSet(t, Static(eager))
	for range 100 {
		require.Equal(t, 10, granted(t, s, "ann", "/search", 10))
		clk.Add(time.Second)
	}
}

// TestLockoutsDouble: each lockout lasts for twice as long as the one before, up to the longest. So
// it does after edits, which take effect on lockouts that have begun.
func TestLockoutsDouble(t *testing.T) {
	growing := eager
	growing.LongestLockout = 4 * time.Minute
	src := &table{rules: []Rule{growing}}
	s, clk := newSet(t, src)
	lockedFor := func(want time.Duration) {
		t.Helper()
		a, err := s.Take(t.Context(), "ann", "GET", "/search", 1)
		require.NoError(t, err)
		require.True(t, a.Refused)
		require.Equal(t, want, a.RetryAfter)
	}
	for _, minutes := range []time.Duration{1, 2, 4, 4} {
		require.Equal(t, 11, granted(t, s, "ann", "/search", 11))
		lockedFor(minutes * time.Minute)
		clk.Add(minutes * time.Minute)
	}

	require.Equal(t, 11, granted(t, s, "ann", "/search", 11))
	wrong := growing
	wrong.LongestLockout = time.Second
	src.put(nil, wrong, limited("other", "/other", 1, ""))
	require.ErrorContains(t, s.Reload(t.Context()), `rule "eager": LongestLockout is "1s"`)
	lockedFor(4 * time.Minute) // the last valid version stays in force
	assert.Equal(t, 1, granted(t, s, "ann", "/other", 2), "and the other rule is loaded")

	src.put(nil, eager)
	require.NoError(t, s.Reload(t.Context()))
	lockedFor(time.Minute)
}

// TestRightPasswords: eight attempts at once on an account that three failures lock out are all
// checked if their passwords are right, and three of them if they are wrong.
func TestRightPasswords(t *testing.T) {
	login := Rule{
		ID: "login", Call: "POST /login", Limit: 3, Window: time.Hour,
		Algorithm: lockout, FirstLockout: time.Minute,
	}
	for name, tt := range map[string]struct {
		settle  func(*testing.T, *Hold)
		checked int
	}{
		"right": {func(t *testing.T, h *Hold) { assert.NoError(t, h.Settle(t.Context(), 0)) }, 8},
		"wrong": {func(t *testing.T, h *Hold) { assert.NoError(t, h.Release(t.Context())) }, 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, _ := newSet(t, Static(login), WithClock(clock.New()))
				var mu sync.Mutex
				checked := 0
				var all sync.WaitGroup
				for range 8 {
					all.Go(func() {
						within, cancel := context.WithTimeout(t.Context(), 10*time.Second)
						defer cancel()
						h, a, err := s.Hold(within, "ann", "POST", "/login", 1, ratelimit.Waiting())
						if err != nil {
							assert.ErrorIs(t, err, context.DeadlineExceeded)
							assert.False(t, a.Allowed)
							return
						}
						mu.Lock()
						checked++
						mu.Unlock()
						time.Sleep(time.Second) // the check, of a hash that is slow to compute
						tt.settle(t, h)
					})
				}
				all.Wait()
				assert.Equal(t, tt.checked, checked)
			})
		})
	}
}

// TestStrictestLockout: of two rules with one ID that allow the same, the one with the longer
// lockouts is in force.
func TestStrictestLockout(t *testing.T) {
	none, longer, growing := eager, eager, eager
	none.Algorithm, none.FirstLockout = slidingLog, 0
	longer.FirstLockout = 2 * time.Minute
	growing.LongestLockout = time.Hour
	for _, rules := range [][]Rule{{none, eager}, {eager, longer}, {eager, growing}} {
		strictest := rules[1]
		for range rules {
			all, bad := newIndex(rules, nil, nil, time.Now())
			require.Len(t, bad, 1)
			assert.Equal(t, strictest, all.valid["eager"].Rule)
			rules[0], rules[1] = rules[1], rules[0]
		}
	}
}
