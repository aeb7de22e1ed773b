package rules

import (
	"database/sql"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

// limiting returns the names of the algorithms that have a limit.
func limiting() []string {
	return slices.DeleteFunc(Algorithms(), func(name string) bool { return name == "unlimited" || name == "blocked" })
}

// TestPlans checks that rules without a limit, and without anything, apply, and that an edit
// to one of them and back keeps the events counted before.
func TestPlans(t *testing.T) {
	for _, alg := range limiting() {
		for _, plan := range []struct {
			name    string
			granted int
		}{{"unlimited", 20}, {"blocked", 0}} {
			src := &table{rules: []Rule{limited("r", "/x", 10, alg)}}
			s, _ := newSet(t, src)
			require.Equal(t, 10, granted(t, s, "ann", "/x", 20), alg)
			for _, r := range []Rule{{ID: "r", Call: "/x", Algorithm: plan.name}, limited("r", "/x", 7, plan.name)} {
				src.put(nil, r)
				require.NoError(t, s.Reload(t.Context()))
				assert.Equal(t, plan.granted, granted(t, s, "ann", "/x", 20), plan.name)
				assert.Equal(t, plan.granted, granted(t, s, "bob", "/x", 20), plan.name)
			}
			src.put(nil, limited("r", "/x", 10, alg))
			require.NoError(t, s.Reload(t.Context()))
			assert.Zero(t, granted(t, s, "ann", "/x", 20), "%s after %s", alg, plan.name)
			assert.Equal(t, 10, granted(t, s, "bob", "/x", 20), "%s after %s", alg, plan.name)
		}
	}
}

// TestUnlimitedException checks that a more specific rule exempts calls from a general one, and
// that a path with several readings is refused by the one that is blocked.
func TestUnlimitedException(t *testing.T) {
	s, _ := newSet(t, Static(
		limited("all", "/**", 2, ""),
		Rule{ID: "static", Call: "/static/**", Algorithm: "unlimited"},
		Rule{ID: "admin", Call: "/static/admin", Algorithm: "blocked"},
	))
	assert.Equal(t, 50, granted(t, s, "ann", "/static/logo", 50))
	assert.Equal(t, 2, granted(t, s, "ann", "/photos", 50))
	assert.Zero(t, granted(t, s, "ann", "/static/admin", 5))
	assert.Zero(t, granted(t, s, "ann", "/static/%61dmin", 5))
	a, err := s.Take(t.Context(), "ann", "GET", "/static%2Fadmin", 1)
	require.NoError(t, err)
	assert.Equal(t, []any{"admin", true, ratelimit.Never}, []any{a.Rule.ID, a.Refused, a.RetryAfter})

	h := s.Middleware()(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for path, status := range map[string]int{"/static/logo": 200, "/static/admin": 429, "/static%2Fadmin": 429} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		assert.Equal(t, status, w.Code, path)
		assert.Empty(t, w.Header().Values("Retry-After"), path)
	}
}

// TestPlansInFiles checks that rules without numbers can be written, and that a limit that is
// missing or 0 is an error in all others.
func TestPlansInFiles(t *testing.T) {
	for text, want := range map[string]Rule{
		`{id: a, call: /x, algorithm: blocked}`:                             {Algorithm: "blocked"},
		`{"id": "a", "call": "/x", "algorithm": "unlimited"}`:               {Algorithm: "unlimited"},
		`{id: a, call: /x, algorithm: blocked, limit: 0, seconds: 0}`:       {Algorithm: "blocked"},
		`{id: a, call: /x, algorithm: unlimited, limit: null, seconds: 60}`: {Algorithm: "unlimited"},
	} {
		got, err := writeFile(t, "- "+text).Load(t.Context())
		require.NoError(t, err, text)
		want.ID, want.Call = "a", "/x"
		assert.Equal(t, []Rule{want}, got, text)
	}
	for text, want := range map[string]string{
		`{id: a, call: /x, limit: 0, seconds: 60}`:                    `limit is 0: it must be at least 1, unless`,
		`{id: a, call: /x, limit: null, seconds: 60}`:                 `limit is <nil>: it must be present`,
		`{id: a, call: /x, algorithm: blocked, burst: 3}`:             `burst is 3`,
		`{call: /x, algorithm: blocked}`:                              `id is <nil>`,
		`{id: a, algorithm: blocked}`:                                 `call is <nil>`,
		`{id: a, call: /x, algorithm: Blocked, limit: 1, seconds: 1}`: `algorithm is "Blocked"`,
		`{id: a, call: /x, algorithm: fixed-window, limit: 3}`:        `seconds is <nil>`,
	} {
		_, err := writeFile(t, "- "+text).Load(t.Context())
		assert.ErrorContains(t, err, want, text)
	}
}

// TestPlanRowsOfTables checks the values that a table has for rules without a limit.
func TestPlanRowsOfTables(t *testing.T) {
	for _, limit := range []any{nil, 0, -1, 5} {
		for _, window := range []any{nil, 0, []byte("60")} {
			got, err := inTable.rule(rowOf(t, map[string]any{
				"THROTTLE_ID": "a", "NORMALIZED_CALL": "/x", "MAX_CALLS": limit, "WINDOW_SECONDS": window,
				"THROTTLE_EXPIRATION": nil, "ALGORITHM": []byte("blocked"),
			}))
			require.NoError(t, err)
			assert.Equal(t, Rule{ID: "a", Call: "/x", Algorithm: "blocked"}, got)
		}
	}
	_, err := inTable.rule(rowOf(t, map[string]any{"THROTTLE_ID": "a", "NORMALIZED_CALL": "/x", "ALGORITHM": "unlimted"}))
	assert.ErrorContains(t, err, `rule "a": ALGORITHM is "unlimted": it must be one of ["sliding-log"`, "and not that it has no limit")
}

// A capacity of 0 or null blocks the key, even if the limiter lets everything pass when a
// lookup fails, and without the cache.
func TestNoCapacity(t *testing.T) {
	limitOf := func(window, capacity any, limit func(int, time.Duration) ratelimit.Algorithm) (ratelimit.Algorithm, error) {
		return SQLLimits(new(sql.DB), "", limit).(*sqlLimits).limitOf(scanned(t, window), scanned(t, capacity), cell{})
	}
	for _, capacity := range []any{nil, int64(0), []byte("0"), "0.0", 0.0} {
		for _, window := range []any{int64(60), nil, int64(0)} {
			alg, err := limitOf(window, capacity, func(int, time.Duration) ratelimit.Algorithm {
				t.Error("asked for a limit")
				return nil
			})
			require.NoError(t, err)
			assert.Equal(t, ratelimit.Blocked{}, alg, "%v in %v", capacity, window)
		}
	}
	for _, capacity := range []any{int64(-1), "", "many", 0.5} {
		_, err := limitOf(int64(60), capacity, nil)
		assert.ErrorContains(t, err, `capacity is`)
	}
	for _, window := range []any{nil, int64(0), int64(-60)} {
		_, err := limitOf(window, int64(5), nil)
		assert.ErrorContains(t, err, `time_window_sec is`)
	}
	alg, err := limitOf(int64(60), int64(5), nil)
	require.NoError(t, err)
	assert.Equal(t, ratelimit.TokenBucket{Rate: ratelimit.PerMinute(5)}, alg)
}

// TestNeedsMoreColumns checks that a query for a limit cannot name an algorithm that needs more
// columns, with a window or without.
func TestNeedsMoreColumns(t *testing.T) {
	for algorithm, want := range map[string]string{
		"calendar-window": `algorithm is "calendar-window": it must be another one, because the query returns no calendar`,
		"lockout":         `algorithm is "lockout": it must be another one, because the query returns no length of a lockout`,
	} {
		for _, window := range []any{int64(60), nil} {
			limits := SQLLimits(new(sql.DB), "", nil).(*sqlLimits)
			_, err := limits.limitOf(scanned(t, window), scanned(t, int64(5)), scanned(t, algorithm))
			assert.ErrorContains(t, err, want)
		}
	}
}
