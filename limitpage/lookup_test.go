package limitpage

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/stepclock"
	"github.com/ratelimit-go/ratelimit/redisstore"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// post sends a form to the page.
func post(page *Page, header http.Header, fields ...string) *httptest.ResponseRecorder {
	form := url.Values{}
	for i := 0; i < len(fields); i += 2 {
		form.Set(fields[i], fields[i+1])
	}
	r := httptest.NewRequest(http.MethodPost, "http://localhost/debug/ratelimit/", strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	for name, values := range header {
		r.Header[name] = values
	}
	w := httptest.NewRecorder()
	page.ServeHTTP(w, r)
	return w
}

// A found is a lookup as clients decode it.
type found struct {
	keyReport
	Limiter, Algorithm, Limit, Error string
	LockedUntil                      *int64

	Decision struct {
		Allowed, Degraded      bool
		Limit, Remaining, Part int
		RetryAfter, ResetAfter *float64
		Delay                  float64
		PartLimit              string
	}
	Next []struct {
		In      float64
		Granted int
		Exactly bool
	}
}

func decode[T any](t *testing.T, w *httptest.ResponseRecorder) (answer T) {
	t.Helper()
	require.Equal(t, http.StatusOK, w.Code, w.Body)
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &answer))
	return answer
}

// TestLookUp: a lookup says what a Peek of the key says, and is no decision.
func TestLookUp(t *testing.T) {
	clk := clock.NewMock()
	page := New()
	l := added(t, page, "api", ratelimit.All{
		ratelimit.TokenBucket{Rate: ratelimit.PerSecond(2), Burst: 4},
		ratelimit.FixedWindow{Limit: 100, Window: time.Hour},
	}, ratelimit.WithClock(clk))
	l.AllowN("k", 4)
	for _, w := range []found{
		get[found](t, page, "&limiter=api&key=k"),
		decode[found](t, post(page, nil, "action", "lookup", "limiter", "api", "key", "k")),
		decode[found](t, post(page, nil, "format", "json", "limiter", "api", "key", "k")),
	} {
		assert.Equal(t, []string{"api", "k", "2/s, burst 4, and 100 in each hour"}, []string{w.Limiter, w.Key, w.Limit})
		assert.False(t, w.Decision.Allowed)
		assert.Equal(t, 4, w.Decision.Limit)
		assert.Equal(t, 0.5, *w.Decision.RetryAfter)
		assert.Equal(t, "2/s, burst 4", w.Decision.PartLimit)
		assert.Len(t, w.Next, 3)
	}
	assert.Zero(t, get[sent](t, page, "").Limiters[0].Denied)
}

func TestLookUpUnusedKey(t *testing.T) {
	page := New()
	added(t, page, "api", ratelimit.TokenBucket{Rate: ratelimit.PerSecond(2)})
	unused := get[found](t, page, "&limiter=api&key=")
	assert.True(t, unused.Decision.Allowed, "the empty key is a key")
	assert.Len(t, unused.Next, 1)
}

// TestLookUpUsedUpKey: a key that is used up may come back when it is like an unused one.
func TestLookUpUsedUpKey(t *testing.T) {
	page := New()
	l := added(t, page, "api", ratelimit.FixedWindow{Limit: 1, Window: time.Hour}, ratelimit.WithClock(clock.NewMock()))
	l.Allow("k")
	assert.Len(t, get[found](t, page, "&limiter=api&key=k").Next, 2)
}

func TestLookUpBlockedKey(t *testing.T) {
	page := New()
	added(t, page, "", ratelimit.Blocked{})
	assert.Nil(t, get[found](t, page, "&limiter=&key=k").Decision.RetryAfter, "never")
}

func TestLookUpDeniedKeys(t *testing.T) {
	page := New()
	l := added(t, page, "api", ratelimit.Blocked{})
	odd, long := "a\xff\u202e\n", strings.Repeat("ü", 5_000)
	plain := `"` // could be the start of a quoted key
	for i, key := range []string{odd, long, plain} {
		for range 3 - i {
			l.Allow(key)
		}
	}
	top := get[sent](t, page, "").Limiters[0].Top
	require.Len(t, top, 3)
	assert.Equal(t, plain, top[2].Key)
	assert.True(t, top[2].Verbatim)
	assert.False(t, top[1].Verbatim)
	assert.Equal(t, `"a\xff\u202e\n"`, top[0].Key)
	assert.False(t, top[0].Verbatim)
	again := get[found](t, page, "&limiter=api&id="+top[0].ID)
	assert.Equal(t, top[0].keyReport, again.keyReport)
	assert.True(t, top[1].Cut)
	cut := post(page, nil, "limiter", "api", "id", top[1].ID)
	assert.Equal(t, http.StatusNotFound, cut.Code)
	assert.Contains(t, cut.Body.String(), "only its first 128 bytes")
	assert.Contains(t, post(page, nil, "limiter", "api", "id", "0").Body.String(), "no longer in a list")
}

// TestLookUpLockedKeys: the page says until when a Lockout has locked a key, also as a part of an
// All, and says so of no other denial.
func TestLookUpLockedKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		page := New()
		lockout := ratelimit.Lockout{Limit: 2, Window: time.Minute, First: 10 * time.Minute}
		for name, alg := range map[string]ratelimit.Algorithm{
			"alone":   lockout,
			"part":    ratelimit.All{ratelimit.FixedWindow{Limit: 9, Window: time.Minute}, lockout},
			"another": ratelimit.All{lockout, ratelimit.FixedWindow{Limit: 2, Window: time.Hour}},
			"none":    ratelimit.FixedWindow{Limit: 2, Window: time.Hour},
		} {
			l := added(t, page, name, alg)
			locked := func() *int64 { return get[found](t, page, "&limiter="+name+"&key=k").LockedUntil }
			require.True(t, l.Allow("k"))
			assert.Nil(t, locked(), name)
			require.True(t, l.Allow("k"))
			if name == "alone" || name == "part" {
				require.NotNil(t, locked(), name)
				assert.Equal(t, time.Now().Add(10*time.Minute).UnixMilli(), *locked(), name)
			} else {
				assert.Nil(t, locked(), "%s: the window denies for longer", name)
			}
		}
	})
}

// TestLookUpByNameThatIsNoText: JSON cannot say the names of these limiters, but each can be found by
// what it says.
func TestLookUpByNameThatIsNoText(t *testing.T) {
	page := New()
	added(t, page, "a\xff", ratelimit.Unlimited{})
	added(t, page, "a\xfe", ratelimit.Blocked{})
	for i, l := range get[sent](t, page, "").Limiters {
		got := decode[found](t, post(page, nil, "limiter", l.Name, "key", "k"))
		assert.Equal(t, l.Name, got.Limiter)
		assert.Equal(t, i == 0, got.Decision.Allowed)
	}
}

// TestLookUpByNameThatIsALabel has a name that is what the page shows of another one.
func TestLookUpByNameThatIsALabel(t *testing.T) {
	for _, names := range [][2]string{{"a\xff", `"a\xff"`}, {`"a\xff"`, "a\xff"}} {
		page := New()
		for _, name := range names {
			added(t, page, name, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(len(name))})
		}
		for _, name := range names {
			got := decode[found](t, post(page, nil, "limiter", name, "key", "k"))
			assert.Equal(t, len(name), got.Decision.Limit, "%q", name)
		}
	}
}

func TestLookUpWhatIsUnknown(t *testing.T) {
	page := New()
	l := ratelimit.Must(ratelimit.New(ratelimit.Blocked{}, ratelimit.WithName("seen"), ratelimit.WithObserver(page.Observe)))
	l.Allow("k")
	for _, name := range []string{"seen", "other"} {
		w := post(page, nil, "action", "lookup", "limiter", name, "key", "k")
		assert.Equal(t, http.StatusNotFound, w.Code)
		assert.Contains(t, w.Body.String(), name)
	}
}

func TestLookUpWithLimits(t *testing.T) {
	page := New()
	secret := errors.New("no customer named k")
	lookup := func(_ context.Context, key string) (ratelimit.Algorithm, error) {
		if key == "k" {
			return nil, secret
		}
		return ratelimit.FixedWindow{Limit: 7, Window: time.Minute}, nil
	}
	added(t, page, "plans", ratelimit.Blocked{}, ratelimit.WithFailureLog(nil), ratelimit.WithLimits(lookup))
	assert.Equal(t, "each key has a limit of its own", get[sent](t, page, "").Limiters[0].Limit)
	assert.Equal(t, "7 in each minute", get[found](t, page, "&limiter=plans&key=gold").Limit)
	failed := get[found](t, page, "&limiter=plans&key=k")
	assert.True(t, failed.Decision.Degraded)
	assert.Contains(t, failed.Error, secret.Error())
	assert.Empty(t, failed.Next, "the failure policy says nothing about later")
}

func TestLookUpWithoutRedis(t *testing.T) {
	page := New()
	redis, err := redisstore.New(conn{})
	require.NoError(t, err)
	added(t, page, "redis", ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)}, ratelimit.WithStore(redis),
		ratelimit.WithFailureLog(nil), ratelimit.WithFailurePolicy(ratelimit.FailClosed()))
	got := get[found](t, page, "&limiter=redis&key=k")
	assert.True(t, got.Decision.Degraded)
	assert.Contains(t, got.Error, "connection refused")
}

// TestNextIsTrue: what the page says of the next requests happens, for every algorithm.
func TestNextIsTrue(t *testing.T) {
	algs := storetest.Algorithms()
	maps.Copy(algs, storetest.Plans())
	for name, alg := range algs {
		t.Run(name, func(t *testing.T) {
			clk := stepclock.New()
			l := ratelimit.Must(ratelimit.New(alg, ratelimit.WithClock(clk)))
			for step := range 12 {
				d, err := l.Peek(t.Context(), "k")
				require.NoError(t, err)
				for _, n := range forecasts(l.Describe().Algorithm, d) {
					assert.True(t, grants(alg, step, n, 0), "step %d: %+v", step, n)
					if n.Exactly {
						require.NotEqual(t, math.MaxInt, n.Granted, "one more cannot be asked for")
						assert.False(t, grants(alg, step, n, 1), "step %d: one more than %+v", step, n)
					}
				}
				use(l, clk)
			}
		})
	}
}

// grants reports whether a key that was used in some steps is granted what a forecast says, and more
// than that.
func grants(alg ratelimit.Algorithm, steps int, n forecast, more int) bool {
	clk := stepclock.New()
	l := ratelimit.Must(ratelimit.New(alg, ratelimit.WithClock(clk)))
	for range steps {
		use(l, clk)
	}
	clk.Advance(time.Duration(n.In))
	return l.AllowN("k", n.Granted+more)
}

// use takes a few events.
func use(l ratelimit.Limiter, clk *stepclock.Clock) {
	l.AllowN("k", 2)
	l.Allow("k")
	clk.Advance(130 * time.Millisecond)
}

// TestNextOfABucket: of a bucket that is neither empty nor full, the page knows when there is one more.
func TestNextOfABucket(t *testing.T) {
	tenth := ratelimit.PerSecond(10)
	const ms = duration(time.Millisecond)
	for name, tt := range map[string]struct {
		alg   ratelimit.Algorithm
		spent int
		want  []forecast
	}{
		"tokens": {
			ratelimit.TokenBucket{Rate: tenth, Burst: 20}, 7,
			[]forecast{{0, 13, true}, {100 * ms, 14, false}, {700 * ms, 20, true}},
		},
		"a queue": {
			ratelimit.LeakyBucket{Rate: tenth, Capacity: 5}, 2,
			[]forecast{{0, 3, true}, {100 * ms, 4, false}, {200 * ms, 5, true}},
		},
		"one is missing": {
			ratelimit.TokenBucket{Rate: tenth}, 1,
			[]forecast{{0, 9, true}, {100 * ms, 10, true}},
		},
		"a third of 1 ns": {
			ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: 3, Per: 1}, Burst: 30_000}, 15_000,
			[]forecast{{0, 15_000, true}, {1000, 15_001, false}, {5000, 30_000, true}},
		},
		"one is left": {
			ratelimit.TokenBucket{Rate: tenth, Burst: 20}, 19,
			[]forecast{{0, 1, true}, {100 * ms, 2, false}, {1900 * ms, 20, true}},
		},
		"none is left": {
			ratelimit.TokenBucket{Rate: tenth, Burst: 20}, 20,
			[]forecast{{0, 0, true}, {100 * ms, 1, false}, {2000 * ms, 20, true}},
		},
		"never full again": {
			ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: 1, Per: ratelimit.Never / 2}, Burst: 10}, 5,
			[]forecast{{0, 5, true}},
		},
		"137 years": {
			ratelimit.TokenBucket{Rate: ratelimit.PerDay(1), Burst: 50_000}, 49_000,
			[]forecast{
				{0, 1000, true},
				{duration(24 * time.Hour), 1001, false},
				{duration(49_000 * 24 * time.Hour), 50_000, true},
			},
		},
		"at intervals": {
			ratelimit.TokenBucket{Rate: tenth, Refill: ratelimit.RefillInterval}, 2,
			[]forecast{{0, 8, true}, {1000 * ms, 10, true}},
		},
		"part of an All": {
			ratelimit.All{ratelimit.TokenBucket{Rate: tenth}, ratelimit.Unlimited{}}, 2,
			[]forecast{{0, 8, true}, {200 * ms, 10, true}},
		},
	} {
		l := ratelimit.Must(ratelimit.New(tt.alg, ratelimit.WithClock(stepclock.New())))
		require.True(t, l.AllowN("k", tt.spent), name)
		d, err := l.Peek(t.Context(), "k")
		require.NoError(t, err)
		assert.Equal(t, tt.want, forecasts(l.Describe().Algorithm, d), name)
	}
	changed := ratelimit.Decision{Allowed: true, Limit: 7, Remaining: 3, ResetAfter: time.Hour}
	assert.Len(t, forecasts(ratelimit.TokenBucket{Rate: tenth, Burst: 20}, changed), 2, "the limit of the key changed in between")
}

func TestReset(t *testing.T) {
	cross := http.Header{"Sec-Fetch-Site": {"cross-site"}}
	foreign := http.Header{"Origin": {"https://evil.example"}}
	own := http.Header{"Sec-Fetch-Site": {"same-origin"}, "Origin": {"http://localhost"}}
	for name, tt := range map[string]struct {
		opts   []Option
		header http.Header
		status int
	}{
		"from the page":               {[]Option{WithReset()}, own, http.StatusOK},
		"from a program":              {[]Option{WithReset()}, nil, http.StatusOK},
		"without WithReset":           {nil, own, http.StatusForbidden},
		"from another site":           {[]Option{WithReset()}, cross, http.StatusForbidden},
		"from another site's browser": {[]Option{WithReset()}, foreign, http.StatusForbidden},
	} {
		t.Run(name, func(t *testing.T) {
			page := New(tt.opts...)
			l := added(t, page, "api", ratelimit.FixedWindow{Limit: 1, Window: time.Hour})
			require.True(t, l.Allow("k"))
			require.False(t, l.Allow("k"))
			w := post(page, tt.header, "action", "reset", "limiter", "api", "key", "k")
			require.Equal(t, tt.status, w.Code, w.Body)
			assert.Equal(t, tt.status == http.StatusOK, l.Allow("k"))
			if w.Code == http.StatusOK {
				assert.True(t, decode[found](t, w).Decision.Allowed)
			}
		})
	}
}

func TestGetResetsNothing(t *testing.T) {
	page := New(WithReset())
	l := added(t, page, "api", ratelimit.FixedWindow{Limit: 1, Window: time.Hour})
	l.Allow("k")
	get[found](t, page, "&action=reset&limiter=api&key=k")
	assert.False(t, l.Allow("k"))
}

func TestResetWithoutRedis(t *testing.T) {
	page := New(WithReset())
	redis, err := redisstore.New(conn{})
	require.NoError(t, err)
	added(t, page, "redis", ratelimit.FixedWindow{Limit: 1, Window: time.Hour}, ratelimit.WithStore(redis))
	assert.Equal(t, http.StatusBadGateway, post(page, nil, "action", "reset", "limiter", "redis", "key", "k").Code)
}

// A stuck is a limiter whose store does not answer.
type stuck struct{ ratelimit.Limiter }

func (stuck) Reset(ctx context.Context, _ string) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestResetDoesNotHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		page := New(WithReset())
		require.NoError(t, page.Add(stuck{named(t, "stuck")}))
		w := post(page, nil, "action", "reset", "limiter", "stuck", "key", "k")
		assert.Equal(t, http.StatusBadGateway, w.Code)
		assert.Contains(t, w.Body.String(), "deadline")
	})
}

// TestHashedKeys: a page with hashed keys shows the same hash of a key wherever it shows the key, and
// never the key, not even in errors.
func TestHashedKeys(t *testing.T) {
	page := New(WithHashedKeys([]byte("secret")))
	looksUp := func(name string, alg ratelimit.Algorithm, err error) ratelimit.Limiter {
		return added(t, page, name, ratelimit.Blocked{}, ratelimit.WithFailureLog(nil),
			ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return alg, err }))
	}
	l := looksUp("api", ratelimit.Blocked{}, nil)
	looksUp("failing", nil, errors.New("no customer named ann@example.com"))
	l.Allow("ann@example.com")
	top := get[sent](t, page, "").Limiters[0].Top
	require.Len(t, top, 1)
	assert.Equal(t, top[0].ID, top[0].Key)
	assert.Len(t, top[0].Key, 16)
	assert.False(t, top[0].Verbatim)
	for _, query := range []string{
		"",
		"&limiter=api&key=ann%40example.com",
		"&limiter=api&id=" + top[0].ID,
		"&limiter=failing&key=ann%40example.com",
	} {
		w := httptest.NewRecorder()
		page.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://localhost/?format=json"+query, http.NoBody))
		assert.Equal(t, http.StatusOK, w.Code)
		assert.NotContains(t, w.Body.String(), "ann")
		assert.Contains(t, w.Body.String(), top[0].Key)
	}
}

// TestHashesDependOnTheSecret: pages with one secret show the same hash of a key, and others another.
func TestHashesDependOnTheSecret(t *testing.T) {
	of := func(secret []byte) keyReport {
		return New(WithHashedKeys(secret)).keyReportOf("ann@example.com")
	}
	one := of([]byte("secret"))
	assert.Equal(t, one, of([]byte("secret")))
	assert.NotEqual(t, one.Key, of([]byte("other")).Key)
	assert.NotEqual(t, one.Key, of(nil).Key)
	erased := []byte("secret")
	option := WithHashedKeys(erased)
	clear(erased) // as careful programs do
	assert.Equal(t, one, New(option).keyReportOf("ann@example.com"))
}

// TestHashesOfListedKeys: the lists of keys that are denied most and use most show hashes of what they
// keep of a key, which is the start of a long one.
func TestHashesOfListedKeys(t *testing.T) {
	page := New(WithHashedKeys([]byte("secret")))
	short, long := "ann@example.com", strings.Repeat("x", 200)
	blocked := added(t, page, "blocked", ratelimit.Blocked{})
	free := added(t, page, "free", ratelimit.Unlimited{})
	blocked.Allow(long)
	free.Allow(short)
	free.AllowN(long, 2)
	report := get[sent](t, page, "")
	denied, used := report.Limiters[0].Top, report.Limiters[1].Used
	require.Len(t, denied, 1)
	assert.True(t, denied[0].Cut)
	require.Len(t, used, 2)
	assert.True(t, used[0].Cut)
	kept := page.keyReportOf(long[:128]).Key
	assert.Equal(t, []string{kept, kept}, []string{denied[0].Key, used[0].Key})
	assert.Equal(t, page.keyReportOf(short), used[1].keyReport)
}
