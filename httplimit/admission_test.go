package httplimit_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/httplimit/key"
)

// TestWithVerdict checks which decision a handler sees.
func TestWithVerdict(t *testing.T) {
	var seen []ratelimit.Decision
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if a, ok := httplimit.VerdictOf(r.Context()); ok {
			seen = append(seen, a.Decision)
		}
	})
	for name, tt := range map[string]struct {
		opts []httplimit.Option
		want []int // Remaining of the decisions seen in three requests, or -1 for a denial
	}{
		"without it":     {nil, nil},
		"with it":        {[]httplimit.Option{httplimit.WithVerdict()}, []int{1, 0}},
		"denied handler": {[]httplimit.Option{httplimit.WithVerdict(), httplimit.WithRefusal(handler)}, []int{1, 0, -1}},
		"settled":        {[]httplimit.Option{httplimit.WithVerdict(), httplimit.WithSettleAtEnd(httplimit.ByCost)}, []int{1, 0}},
		"no fields":      {[]httplimit.Option{httplimit.WithVerdict(), httplimit.WithHeaders(httplimit.None)}, []int{1, 0}},
		"shaped":         {[]httplimit.Option{httplimit.WithVerdict(), httplimit.WithShaping(1)}, []int{1, 0}},
		"skipped":        {[]httplimit.Option{httplimit.WithVerdict(), httplimit.WithSkip(func(*http.Request) bool { return true })}, nil},
		"free":           {[]httplimit.Option{httplimit.WithVerdict(), httplimit.WithCost(func(*http.Request) int { return 0 })}, nil},
		"shadow": {[]httplimit.Option{httplimit.WithVerdict(), httplimit.WithShadow(1, func(*http.Request, ratelimit.Decision) {})},
			[]int{1, 0, -1}},
		"shadow without it": {[]httplimit.Option{httplimit.WithShadow(1, func(*http.Request, ratelimit.Decision) {})}, nil},
	} {
		seen = nil
		l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(2)})
		h := httplimit.Middleware(l, tt.opts...)(handler)
		for range 3 {
			serve(h, from("192.0.2.1:1"))
		}
		require.Len(t, seen, len(tt.want), name)
		for i, d := range seen {
			assert.Equal(t, tt.want[i] >= 0, d.Allowed, name)
			assert.Equal(t, max(0, tt.want[i]), d.Remaining, name)
			assert.Equal(t, 2, d.Limit, name)
		}
	}
}

// TestWithVerdictOfTheInnermost has one middleware in another.
func TestWithVerdictOfTheInnermost(t *testing.T) {
	outer, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(9)})
	inner, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(3)})
	told := httplimit.WithVerdict()
	for want, middleware := range map[int]func(http.Handler) http.Handler{
		3: httplimit.Middleware(inner, told),
		9: httplimit.Middleware(inner),
	} {
		h := httplimit.Middleware(outer, told)(middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			a, ok := httplimit.VerdictOf(r.Context())
			assert.True(t, ok)
			assert.Equal(t, want, a.Decision.Limit)
		})))
		serve(h, from("192.0.2.1:1"))
	}
}

// TestWithVerdictHandsBack checks that net/http and outer handlers find in their request what
// the handler has set in its own: the route, and a form whose files are to be removed.
func TestWithVerdictHandsBack(t *testing.T) {
	for name, opts := range map[string][]httplimit.Option{
		"alone":   {httplimit.WithVerdict()},
		"settled": {httplimit.WithVerdict(), httplimit.WithSettleAtEnd(httplimit.ByCost)},
	} {
		for _, panics := range []bool{false, true} {
			l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(2)})
			mux := http.NewServeMux()
			mux.HandleFunc("POST /x/{id}", func(w http.ResponseWriter, r *http.Request) {
				assert.NoError(t, r.ParseMultipartForm(1<<20))
				if panics {
					panic(http.ErrAbortHandler)
				}
			})
			r := httptest.NewRequest("POST", "/x/1", strings.NewReader("--b\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n--b--\r\n"))
			r.Header.Set("Content-Type", "multipart/form-data; boundary=b")
			func() {
				defer func() { _ = recover() }()
				httplimit.Middleware(l, opts...)(mux).ServeHTTP(httptest.NewRecorder(), r)
			}()
			assert.Equal(t, "POST /x/{id}", r.Pattern, name)
			assert.NotNil(t, r.MultipartForm, name)
		}
	}
}

// TestRefusalHandsBack checks the same of the functions that answer a request which is refused.
func TestRefusalHandsBack(t *testing.T) {
	parse := func(_ http.ResponseWriter, r *http.Request) {
		r.Pattern = "refused"
		assert.NoError(t, r.ParseMultipartForm(1<<20))
	}
	for name, opts := range map[string][]httplimit.Option{
		"denied": {httplimit.WithRefusal(http.HandlerFunc(parse))},
		"no key": {
			httplimit.WithKey(key.Header("User")),
			httplimit.WithRefusal(http.HandlerFunc(parse)),
		},
	} {
		l, _ := limiter(t, ratelimit.Blocked{})
		r := httptest.NewRequest("POST", "/", strings.NewReader("--b\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n--b--\r\n"))
		r.Header.Set("Content-Type", "multipart/form-data; boundary=b")
		serve(httplimit.Middleware(l, opts...)(ok), r)
		assert.Equal(t, "refused", r.Pattern, name)
		assert.NotNil(t, r.MultipartForm, name)
	}
}

// TestVerdictOfNoDecision checks that handlers which decide themselves, and those of other
// protocols, find no Admission in its Context either, if no limit was asked.
func TestVerdictOfNoDecision(t *testing.T) {
	l, _ := limiter(t, ratelimit.FixedWindow{Limit: 3, Window: time.Hour})
	shadow := []httplimit.Limit{{Name: "trial", Limiter: l, Key: "all", Shadow: func(ratelimit.Decision) {}}}
	for name, tt := range map[string]struct {
		limits []httplimit.Limit
		opt    httplimit.Option
	}{
		"skipped": {shadow, httplimit.WithSkip(func(*http.Request) bool { return true })},
		"free":    {shadow, httplimit.WithCost(func(*http.Request) int { return 0 })},
		"none":    {nil, httplimit.WithVerdict()},
		"shadows": {shadow, httplimit.WithVerdict()},
	} {
		gate, err := httplimit.NewGateOf(func(*http.Request, string) ([]httplimit.Limit, error) {
			return tt.limits, nil
		}, httplimit.WithVerdict(), tt.opt)
		require.NoError(t, err)
		admission := gate.Admit(from("192.0.2.1:1"))
		assert.True(t, admission.Passed, name)
		assert.Zero(t, admission.Decision, name)
		_, found := httplimit.VerdictOf(admission.Context())
		assert.False(t, found, name)
		serve(gate.Middleware(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			_, found = httplimit.VerdictOf(r.Context())
		})), from("192.0.2.1:1"))
		assert.False(t, found, name)
	}
}
