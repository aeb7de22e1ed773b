package httplimit_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/httplimit/clientip"
	"github.com/ratelimit-go/ratelimit/httplimit/key"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

// remaining returns how much the client 192.0.2.1 has left.
func remaining(t *testing.T, l ratelimit.Limiter) int {
	t.Helper()
	d, err := l.Peek(context.Background(), "192.0.2.1")
	require.NoError(t, err)
	return d.Remaining
}

// answering answers with the status in the query.
var answering = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	status, _ := strconv.Atoi(r.URL.RawQuery)
	w.WriteHeader(status)
})

// TestSettleCountsFailures limits failed logins, and no others.
func TestSettleCountsFailures(t *testing.T) {
	l, clk := limiter(t, ratelimit.FixedWindow{Limit: 3, Window: time.Minute, Start: ratelimit.StartOnFirstEvent})
	h := httplimit.Middleware(l, httplimit.WithSettleAtEnd(func(r *http.Request, status int, _ int64) int {
		assert.Equal(t, strconv.Itoa(status), r.URL.RawQuery)
		if status == http.StatusOK {
			return 0
		}
		return 1
	}))(answering)
	login := func(status int) *http.Response {
		r := httptest.NewRequest("GET", "/?"+strconv.Itoa(status), nil)
		r.RemoteAddr = "192.0.2.1:1"
		return serve(h, r)
	}
	for i, step := range []struct{ answer, want, left int }{
		{200, 200, 3}, {200, 200, 3}, {401, 401, 2}, {200, 200, 2}, {500, 500, 1}, {200, 200, 1}, {401, 401, 0}, {200, 429, 0}, {401, 429, 0},
	} {
		assert.Equal(t, step.want, login(step.answer).StatusCode, i)
		assert.Equal(t, step.left, remaining(t, l), i)
	}
	clk.Add(time.Minute)
	assert.Equal(t, `"default";r=2;t=60`, login(200).Header.Get("RateLimit"), "as it was after the hold")
	assert.Equal(t, 3, remaining(t, l))
}

// TestSettleBytes holds an estimate and settles with the bytes that were written, also beyond
// the limit.
func TestSettleBytes(t *testing.T) {
	l, clk := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(100)})
	h := httplimit.Middleware(l,
		httplimit.WithCost(func(*http.Request) int { return 10 }),
		httplimit.WithSettleAtEnd(func(_ *http.Request, _ int, written int64) int { return int(written) }),
	)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, _ := strconv.Atoi(r.URL.RawQuery)
		w.Write(make([]byte, n))
	}))
	get := func(n int) *http.Response {
		r := httptest.NewRequest("GET", "/?"+strconv.Itoa(n), nil)
		r.RemoteAddr = "192.0.2.1:1"
		return serve(h, r)
	}
	assert.Equal(t, 200, get(4).StatusCode)
	assert.Equal(t, 96, remaining(t, l))
	assert.Equal(t, 200, get(346).StatusCode)
	resp := get(1)
	assert.Equal(t, 429, resp.StatusCode)
	assert.Equal(t, "3", resp.Header.Get("Retry-After"), "250 of debt, and 10 for the estimate: 2.6 s")
	clk.Add(2600*time.Millisecond - 1)
	assert.Equal(t, 429, get(1).StatusCode)
	clk.Add(1)
	assert.Equal(t, 200, get(1).StatusCode)
}

// An unread response is that of a client that reads nothing for an hour: whatever sends something
// takes as long.
type unread struct{ *httptest.ResponseRecorder }

func (w unread) WriteHeader(status int) {
	time.Sleep(time.Hour)
	w.ResponseRecorder.WriteHeader(status)
}

func (w unread) Write(p []byte) (int, error) {
	time.Sleep(time.Hour)
	return w.ResponseRecorder.Write(p)
}

func (w unread) WriteString(s string) (int, error) { return w.Write([]byte(s)) }

func (w unread) ReadFrom(src io.Reader) (int64, error) {
	time.Sleep(time.Hour)
	return io.Copy(w.ResponseRecorder, src)
}

func (w unread) Flush() {
	time.Sleep(time.Hour)
	w.ResponseRecorder.Flush()
}

// A request whose cost its status says is settled before anything is sent. So a client that reads
// nothing until the hold has ended by itself pays.
func TestSettleByStatus_SlowReader(t *testing.T) {
	for name, tt := range map[string]struct {
		answer func(http.ResponseWriter)
		left   int
	}{
		"status":     {func(w http.ResponseWriter) { w.WriteHeader(401) }, 6},
		"hints":      {func(w http.ResponseWriter) { w.WriteHeader(103); w.WriteHeader(401) }, 10}, // hints are not the header
		"bytes":      {func(w http.ResponseWriter) { w.Write([]byte("no")) }, 8},
		"string":     {func(w http.ResponseWriter) { io.WriteString(w, "no") }, 8},
		"copy":       {func(w http.ResponseWriter) { io.Copy(w, only{strings.NewReader("no")}) }, 8},
		"flush":      {func(w http.ResponseWriter) { w.(http.Flusher).Flush() }, 8},
		"controller": {func(w http.ResponseWriter) { _ = http.NewResponseController(w).Flush() }, 8},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 10, Window: 30 * 24 * time.Hour}))
			byStatus := httplimit.WithSettle(func(_ *http.Request, status int) int { return status / 100 },
				ratelimit.HoldFor(time.Minute), ratelimit.GiveBack())
			h := httplimit.Middleware(l, byStatus, httplimit.WithCost(func(*http.Request) int { return 9 }))(
				http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { tt.answer(w) }))
			h.ServeHTTP(unread{httptest.NewRecorder()}, from("192.0.2.1:1"))
			assert.Equal(t, tt.left, remaining(t, l), name)
		})
	}
}

// A request in flight is so until its handler returns, and is settled then. So is one that another
// limiter settles by more than the status.
func TestSettleByStatus_Later(t *testing.T) {
	byStatus := httplimit.WithSettle(func(_ *http.Request, status int) int { return status / 100 })
	byBytes := httplimit.WithSettleAtEnd(func(r *http.Request, status int, written int64) int {
		return int(written)
	})
	month := ratelimit.FixedWindow{Limit: 10, Window: 30 * 24 * time.Hour}
	flight := ratelimit.InFlight{Limit: 10, Timeout: time.Hour}
	for name, tt := range map[string]struct {
		alg                  ratelimit.Algorithm
		own                  []httplimit.CostOption // of another limiter
		during, after, other int                    // what is left after the header, after the handler, and in the other
	}{
		"by status":       {month, []httplimit.CostOption{byStatus}, 6, 6, 6},
		"both by status":  {month, nil, 6, 6, 6},
		"by bytes":        {month, []httplimit.CostOption{byBytes}, 9, 6, 7},
		"cost":            {month, []httplimit.CostOption{httplimit.WithCost(func(*http.Request) int { return 2 })}, 6, 6, 8},
		"in flight":       {flight, nil, 9, 10, 6},
		"also in flight":  {ratelimit.All{month, flight}, nil, 9, 6, 6},
		"by its own cost": {month, []httplimit.CostOption{httplimit.WithSettleAtEnd(httplimit.ByCost)}, 9, 6, 9},
	} {
		l, clk := limiter(t, tt.alg)
		other := ratelimit.Must(ratelimit.New(month, ratelimit.WithClock(clk)))
		h := httplimit.Middleware(l, byStatus, httplimit.WithAlso(other, key.Everybody(), "other", tt.own...))(
			http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(401)
				assert.Equal(t, tt.during, remaining(t, l), name)
				io.WriteString(w, "no!")
			}))
		serve(h, from("192.0.2.1:1"))
		assert.Equal(t, tt.after, remaining(t, l), name)
		assert.Equal(t, tt.other, left(t, other, "everybody"), name)
	}
}

// A plainWriter cannot flush.
type plainWriter struct{ http.ResponseWriter }

// TestSettleByStatus_CannotFlush: a Flush that does nothing sends no header, and settles nothing,
// also behind another middleware.
func TestSettleByStatus_CannotFlush(t *testing.T) {
	month := ratelimit.FixedWindow{Limit: 10, Window: 30 * 24 * time.Hour}
	l, clk := limiter(t, month)
	other := ratelimit.Must(ratelimit.New(month, ratelimit.WithClock(clk)))
	failures := httplimit.WithSettle(func(_ *http.Request, status int) int { return status / 400 })
	written := httplimit.WithSettleAtEnd(func(*http.Request, int, int64) int { return 0 })
	h := httplimit.Middleware(other, written)(httplimit.Middleware(l, failures)(
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.(http.Flusher).Flush()
			w.WriteHeader(http.StatusUnauthorized)
		})))
	h.ServeHTTP(plainWriter{httptest.NewRecorder()}, from("192.0.2.1:1"))
	assert.Equal(t, 9, remaining(t, l))
}

// TestCost settles with what handlers tell.
func TestCost(t *testing.T) {
	for name, tt := range map[string]struct {
		handler func(*http.Request)
		want    int
	}{
		"not told": {func(*http.Request) {}, 10},
		"free":     {func(r *http.Request) { httplimit.Cost(r.Context(), 0) }, 0},
		"once":     {func(r *http.Request) { httplimit.Cost(r.Context(), 3) }, 3},
		"more":     {func(r *http.Request) { httplimit.Cost(r.Context(), 30) }, 30},
		"a stream": {func(r *http.Request) {
			httplimit.Cost(r.Context(), 3)
			httplimit.Cost(r.Context(), 4)
			httplimit.Cost(r.Context(), 5)
		}, 12},
		"corrected": {func(r *http.Request) { httplimit.Cost(r.Context(), 9); httplimit.Cost(r.Context(), -2) }, 7},
		"far too much, of which most is taken back": {func(r *http.Request) {
			for _, n := range []int{5, math.MaxInt, 3 - math.MaxInt} {
				httplimit.Cost(r.Context(), n)
			}
		}, 3},
		"far too little, of which most comes after all": {func(r *http.Request) {
			for _, n := range []int{-5, math.MinInt, math.MaxInt, 8} {
				httplimit.Cost(r.Context(), n)
			}
		}, 7},
		"derived":     {func(r *http.Request) { httplimit.Cost(t.Context(), 5) }, 10},
		"derived too": {func(r *http.Request) { httplimit.Cost(context.WithoutCancel(r.Context()), 5) }, 5},
		"at once": {func(r *http.Request) {
			var wg sync.WaitGroup
			for range 20 {
				wg.Go(func() { httplimit.Cost(r.Context(), 2) })
			}
			wg.Wait()
		}, 40},
	} {
		l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(100)})
		h := httplimit.Middleware(l, httplimit.WithCost(func(*http.Request) int { return 10 }), httplimit.WithSettleAtEnd(httplimit.ByCost))(
			http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { tt.handler(r) }))
		serve(h, from("192.0.2.1:1"))
		assert.Equal(t, 100-tt.want, remaining(t, l), name)
	}
}

// TestSettleAfterTheHold: a request that its handler takes too long for counts as it was held, or
// as the options say, however it was held. With WithAlso, those of a WithSettleAtEnd of a limiter's
// own are its own.
func TestSettleAfterTheHold(t *testing.T) {
	month := ratelimit.FixedWindow{Limit: 100, Window: 30 * 24 * time.Hour}
	for name, opts := range map[string][]httplimit.Option{
		"at once":           nil,
		"shaped":            {httplimit.WithShaping(time.Second)},
		"shaped, in flight": {httplimit.WithShaping(time.Second), httplimit.WithInFlight()},
		"also":              {},
	} {
		for _, tt := range []struct {
			takes time.Duration
			hold  []ratelimit.EndOption
			want  int
		}{
			{10*time.Minute - 1, nil, 99},
			{10 * time.Minute, nil, 90},
			{10 * time.Minute, []ratelimit.EndOption{ratelimit.HoldFor(time.Hour)}, 99},
			{time.Hour, []ratelimit.EndOption{ratelimit.HoldFor(time.Hour)}, 90},
			{time.Hour, []ratelimit.EndOption{ratelimit.GiveBack()}, 100},
		} {
			l, clk := limiter(t, month)
			other := ratelimit.Must(ratelimit.New(month, ratelimit.WithClock(clk)))
			opts := append(opts, httplimit.WithCost(func(*http.Request) int { return 10 }), httplimit.WithSettleAtEnd(httplimit.ByCost, tt.hold...))
			if name == "also" {
				opts = append(opts, httplimit.WithAlso(other, clientip.Of(), "also"),
					httplimit.WithAlso(other, key.Everybody(), "own", httplimit.WithSettleAtEnd(httplimit.ByCost, ratelimit.GiveBack())))
			}
			h := httplimit.Middleware(l, opts...)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				clk.Add(tt.takes)
				httplimit.Cost(r.Context(), 1)
			}))
			assert.Equal(t, 200, serve(h, from("192.0.2.1:1")).StatusCode)
			assert.Equal(t, tt.want, remaining(t, l), "%s, %v", name, tt.takes)
			if name == "also" {
				assert.Equal(t, tt.want, remaining(t, other))
				want := 100
				if tt.takes < 10*time.Minute {
					want = 99
				}
				assert.Equal(t, want, left(t, other, "everybody"))
			}
		}
	}
}

// TestCostIsKnownToSettle checks the sum that WithSettleAtEnd's function gets, and that it neither
// overflows nor exists elsewhere.
func TestCostIsKnownToSettle(t *testing.T) {
	l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(100)})
	for _, tt := range []struct {
		told []int
		want int
	}{
		{nil, 0},
		{[]int{1, 2}, 3},
		{[]int{math.MaxInt, 1}, math.MaxInt},
		{[]int{math.MaxInt, math.MaxInt, -1}, math.MaxInt - 1},
		{[]int{math.MinInt, -1}, math.MinInt},
	} {
		var sum int
		var ok bool
		h := httplimit.Middleware(l, httplimit.WithSettleAtEnd(func(r *http.Request, _ int, _ int64) int {
			sum, ok = httplimit.CostOf(r.Context())
			return 0
		}))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			for _, n := range tt.told {
				httplimit.Cost(r.Context(), n)
			}
		}))
		serve(h, from("192.0.2.1:1"))
		assert.Equal(t, tt.want, sum)
		assert.Equal(t, tt.told != nil, ok)
	}
	r := from("192.0.2.1:1")
	httplimit.Cost(r.Context(), 3)
	_, ok := httplimit.CostOf(r.Context())
	assert.False(t, ok)
	assert.Zero(t, httplimit.ByCost(r, 200, 5))
}

// TestCostCountsForEachMiddleware nests a limit of tokens and a limit of failures in one of
// tokens.
func TestCostCountsForEachMiddleware(t *testing.T) {
	outer, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(100)})
	failures, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(100)})
	inner, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(100)})
	h := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { httplimit.Cost(r.Context(), 5) }))
	h = httplimit.Middleware(inner, httplimit.WithSettleAtEnd(httplimit.ByCost))(h)
	h = httplimit.Middleware(failures, httplimit.WithSettleAtEnd(func(_ *http.Request, status int, _ int64) int { return status / 300 }))(h)
	counted := h
	h = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { httplimit.Cost(r.Context(), 2); counted.ServeHTTP(w, r) })
	h = httplimit.Middleware(outer, httplimit.WithSettleAtEnd(httplimit.ByCost))(h)
	serve(h, from("192.0.2.1:1"))
	assert.Equal(t, 93, remaining(t, outer))
	assert.Equal(t, 100, remaining(t, failures))
	assert.Equal(t, 95, remaining(t, inner))
}

// TestSettleKeepsPanics checks that a panic goes on as it was, after the request was settled.
func TestSettleKeepsPanics(t *testing.T) {
	for _, value := range []error{http.ErrAbortHandler, errors.New("a bug")} {
		l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(100)})
		h := httplimit.Middleware(l, httplimit.WithSettleAtEnd(httplimit.ByCost))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			httplimit.Cost(r.Context(), 7)
			panic(value)
		}))
		assert.PanicsWithValue(t, value, func() { serve(h, from("192.0.2.1:1")) })
		assert.Equal(t, 93, remaining(t, l))
	}
}

// TestSettleKeepsTheHold checks that the cost that was held remains if WithSettleAtEnd's function
// fails.
func TestSettleKeepsTheHold(t *testing.T) {
	l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(100)})
	var reported error
	options := []httplimit.Option{
		httplimit.WithCost(func(*http.Request) int { return 10 }),
		httplimit.WithStoreError(func(_ *http.Request, err error) { reported = err }),
	}
	negative := httplimit.WithSettleAtEnd(func(*http.Request, int, int64) int { return -3 })
	assert.Equal(t, 200, serve(httplimit.Middleware(l, append(options, negative)...)(ok), from("192.0.2.1:1")).StatusCode)
	assert.EqualError(t, reported, "httplimit: WithSettleAtEnd's function returned -3: it must return at least 0")
	assert.Equal(t, 90, remaining(t, l))

	panics := httplimit.WithSettleAtEnd(func(*http.Request, int, int64) int { panic("a bug") })
	assert.PanicsWithValue(t, "a bug", func() { serve(httplimit.Middleware(l, append(options, panics)...)(ok), from("192.0.2.1:1")) })
	assert.Equal(t, 80, remaining(t, l))

	reported = nil
	tooMany := httplimit.WithSettleAtEnd(func(*http.Request, int, int64) int { return math.MaxInt })
	assert.Equal(t, 200, serve(httplimit.Middleware(l, append(options, tooMany)...)(ok), from("192.0.2.1:1")).StatusCode)
	assert.ErrorIs(t, reported, ratelimit.ErrDebt)
	assert.Equal(t, 70, remaining(t, l))
}

// TestSettleAfterTheClientLeft checks that a request is settled although its context ends
// while it is handled.
func TestSettleAfterTheClientLeft(t *testing.T) {
	for name, end := range map[string]func(context.Context) (context.Context, context.CancelFunc){
		"the client left": context.WithCancel,
		"the deadline passed": func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, time.Second)
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(100)}))
			ctx, leave := end(t.Context())
			defer leave()
			h := httplimit.Middleware(l, httplimit.WithSettleAtEnd(httplimit.ByCost),
				httplimit.WithStoreError(func(_ *http.Request, err error) { t.Error(err) }))(
				http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					httplimit.Cost(r.Context(), 7)
					if name == "the client left" {
						leave()
					}
					<-r.Context().Done()
				}))
			serve(h, from("192.0.2.1:1").WithContext(ctx))
			assert.Equal(t, 93, remaining(t, l), name)
		})
	}
}

// TestSettleWithShaping holds a request until its turn, and settles it afterwards.
func TestSettleWithShaping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)}))
		h := httplimit.Middleware(l, httplimit.WithShaping(time.Second),
			httplimit.WithCost(func(*http.Request) int { return 5 }), httplimit.WithSettleAtEnd(httplimit.ByCost))(
			http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { httplimit.Cost(r.Context(), 1) }))
		require.True(t, l.AllowN("192.0.2.1", 10))
		start := time.Now()
		assert.Equal(t, 200, serve(h, from("192.0.2.1:1")).StatusCode)
		assert.Equal(t, 500*time.Millisecond, time.Since(start))
		assert.Equal(t, 4, remaining(t, l), "five had come, and one was used")
	})
}

// TestSettleDoesNotDelay checks that a hold does not wait for the Delay of a LeakyBucket, as
// requests without WithSettleAtEnd do not.
func TestSettleDoesNotDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.Must(ratelimit.New(ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(1), Capacity: 5}))
		h := httplimit.Middleware(l, httplimit.WithSettleAtEnd(httplimit.ByCost))(ok)
		start := time.Now()
		for range 5 {
			assert.Equal(t, 200, serve(h, from("192.0.2.1:1")).StatusCode)
		}
		assert.Zero(t, time.Since(start))
	})
}

// TestSettleInShadow settles the requests that would have passed, and no others.
func TestSettleInShadow(t *testing.T) {
	l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(10)})
	refused, settled := 0, 0
	h := httplimit.Middleware(l,
		httplimit.WithShadow(1, func(*http.Request, ratelimit.Decision) { refused++ }),
		httplimit.WithSettleAtEnd(func(*http.Request, int, int64) int { settled++; return 4 }))(ok)
	for range 5 {
		assert.Equal(t, "ok", body(t, serve(h, from("192.0.2.1:1"))))
	}
	assert.Equal(t, 3, settled, "4 + 4 + 4 are 2 of debt")
	assert.Equal(t, 2, refused)
}

// TestNotSettled has the requests that hold nothing.
func TestNotSettled(t *testing.T) {
	l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)})
	h := httplimit.Middleware(l,
		httplimit.WithSkip(func(r *http.Request) bool { return r.URL.Path == "/skip" }),
		httplimit.WithCost(func(r *http.Request) int { return len(r.URL.Path) - 1 }),
		httplimit.WithSettleAtEnd(func(*http.Request, int, int64) int { t.Error("settled"); return 0 }))(ok)
	for path, want := range map[string]int{"/": 200, "/skip": 200, "/12": 429} {
		r := httptest.NewRequest("GET", path, nil)
		assert.Equal(t, want, serve(h, r).StatusCode, path)
	}
	r := httptest.NewRequest("GET", "/1", nil)
	r.RemoteAddr = "@"
	assert.Equal(t, 400, serve(h, r).StatusCode)
}

// A flaky store fails while it is down.
type flaky struct {
	limit.States
	down atomic.Bool
}

func (f *flaky) Open(name string, t *limit.Limit, timeout time.Duration) (_ limit.States, err error) {
	f.States, err = new(ratelimit.MemoryStore).Open(name, t, timeout)
	return f, err
}

func (f *flaky) Apply(ctx context.Context, key string, t *limit.Limit, req step.Request) (step.Answer, error) {
	if f.down.Load() {
		return step.Answer{}, errors.New("no route to the store")
	}
	return f.States.Apply(ctx, key, t, req)
}

// TestSettleWhenTheStoreFails lets the store fail before or after the handler.
func TestSettleWhenTheStoreFails(t *testing.T) {
	for _, tt := range []struct {
		name     string
		down, up bool // whether the store is down before, and up afterwards
		policy   ratelimit.FailurePolicy
		status   int
		left     int
		reported int
	}{
		{"well", false, true, ratelimit.FailOpen(), 200, 93, 0},
		{"fails afterwards", false, false, ratelimit.FailOpen(), 200, 99, 1},
		{"failed before", true, true, ratelimit.FailOpen(), 200, 93, 1},
		{"fails", true, false, ratelimit.FailOpen(), 200, 100, 2},
		{"fails afterwards, closed", false, false, ratelimit.FailClosed(), 200, 99, 1},
		{"failed before, closed", true, true, ratelimit.FailClosed(), 503, 100, 1},
	} {
		for _, set := range []bool{true, false} {
			logged := quiet(t)
			store := new(flaky)
			store.down.Store(tt.down)
			l, err := ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(100)}, ratelimit.WithStore(store),
				ratelimit.WithName("test"), ratelimit.WithFailurePolicy(tt.policy))
			require.NoError(t, err)
			reported := 0
			options := []httplimit.Option{httplimit.WithSettleAtEnd(httplimit.ByCost)}
			if set {
				options = append(options, httplimit.WithStoreError(func(_ *http.Request, err error) {
					assert.ErrorContains(t, err, "no route to the store", tt.name)
					reported++
				}))
			}
			resp := serve(httplimit.Middleware(l, options...)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				httplimit.Cost(r.Context(), 7)
				store.down.Store(!tt.up)
			})), from("192.0.2.1:1"))
			assert.Equal(t, tt.status, resp.StatusCode, tt.name)
			store.down.Store(false)
			assert.Equal(t, tt.left, remaining(t, l), tt.name)
			if set {
				assert.Equal(t, tt.reported, reported, tt.name)
			}
			assert.NotContains(t, logged.String(), "httplimit", "the limiter logs it")
		}
	}
}

// TestSettleHandsTheRequestBack checks that outer handlers find the route of the mux in their
// request, and that net/http removes the files of a form, as without WithSettleAtEnd.
func TestSettleHandsTheRequestBack(t *testing.T) {
	l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(100)})
	files := make(chan string, 1)
	settledAt := make(chan string, 1)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /upload/{name}", func(w http.ResponseWriter, r *http.Request) {
		assert.NoError(t, r.ParseMultipartForm(1))
		file, _, err := r.FormFile("file")
		if assert.NoError(t, err) {
			files <- file.(*os.File).Name()
			file.Close()
		}
	})
	h := httplimit.Middleware(l, httplimit.WithSettleAtEnd(func(r *http.Request, _ int, _ int64) int { settledAt <- r.Pattern; return 0 }))(mux)
	routes := make(chan string, 1)
	server := serverOf(t, "HTTP/1.1", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r)
		routes <- r.Pattern
	}))
	var form bytes.Buffer
	w := multipart.NewWriter(&form)
	part, err := w.CreateFormFile("file", "x")
	require.NoError(t, err)
	io.WriteString(part, strings.Repeat("x", 11<<20))
	require.NoError(t, w.Close())
	resp, err := server.Client().Post(server.URL+"/upload/x", w.FormDataContentType(), &form)
	require.NoError(t, err)
	resp.Body.Close()
	assert.Equal(t, 200, resp.StatusCode)
	assert.Equal(t, "POST /upload/{name}", <-settledAt)
	assert.Equal(t, "POST /upload/{name}", <-routes)
	server.Close() // after which the request is over
	assert.NoFileExists(t, <-files)
}

// TestNoWrapperUnlessAskedFor checks that without WithSettleAtEnd, the handler gets what the
// middleware got.
func TestNoWrapperUnlessAskedFor(t *testing.T) {
	l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(100)})
	w, r, handled := httptest.NewRecorder(), from("192.0.2.1:1"), false
	httplimit.Middleware(l)(http.HandlerFunc(func(inner http.ResponseWriter, request *http.Request) {
		handled = true
		assert.Same(t, w, inner)
		assert.Same(t, r, request)
	})).ServeHTTP(w, r)
	assert.True(t, handled)
}

// A request that holds events, and is not passed to its handler after all, gives them back.
func TestHeldIsGivenBack(t *testing.T) {
	settle := httplimit.WithSettleAtEnd(func(*http.Request, int, int64) int { return 0 })
	shaping := httplimit.WithShaping(time.Hour)
	flight := ratelimit.All{ratelimit.InFlight{Limit: 20, Timeout: time.Hour}, ratelimit.FixedWindow{Limit: 10, Window: time.Minute}}
	for name, tt := range map[string]struct {
		alg  ratelimit.Algorithm
		opts []httplimit.Option
		// whether the lookup of the key's limit panics once the events are held; otherwise, the
		// client leaves when its turn comes. In memory, that is too late if there is no lookup
		panics bool
	}{
		"left":            {ratelimit.FixedWindow{Limit: 10, Window: time.Minute}, []httplimit.Option{shaping, settle}, false},
		"left, in flight": {flight, []httplimit.Option{shaping}, false},
		"left, both":      {flight, []httplimit.Option{shaping, settle}, false},
		"panic":           {ratelimit.FixedWindow{Limit: 10, Window: time.Minute}, []httplimit.Option{settle}, true},
		"panic, flight":   {flight, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				held := false
				opts := []ratelimit.Option{ratelimit.WithObserver(func(_ context.Context, o ratelimit.Observation) {
					held = o.Call == ratelimit.CallHold || o.Call == ratelimit.CallWait
					if held && !tt.panics {
						leave()
					}
				})}
				opts = append(opts, ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) {
					if tt.panics && held {
						held = false
						panic(http.ErrAbortHandler)
					}
					return tt.alg, nil
				}))
				l := ratelimit.Must(ratelimit.New(tt.alg, opts...))
				served := false
				h := httplimit.Middleware(l, append(tt.opts, httplimit.WithInFlight(), httplimit.WithCost(func(*http.Request) int { return 6 }))...)(
					http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served = true }))
				if !tt.panics {
					require.True(t, l.AllowN("192.0.2.1", 5)) // so that it waits for the next window
				}
				aborted := func() (aborted bool) {
					defer func() { aborted = recover() != nil }()
					assert.Equal(t, 503, serve(h, from("192.0.2.1:1").WithContext(ctx)).StatusCode)
					return false
				}()
				assert.Equal(t, tt.panics, aborted)
				assert.False(t, served)
				assert.Equal(t, 10, remaining(t, l))
			})
		})
	}
}
