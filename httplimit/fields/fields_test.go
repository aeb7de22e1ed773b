package fields

import (
	"math"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
)

// TestFieldsParse parses the header fields of the middleware as lists of strings with
// parameters, and compares them with the limiter's decisions.
func TestFieldsParse(t *testing.T) {
	hour := ratelimit.FixedWindow{Limit: 100, Window: time.Hour}
	for name, tt := range map[string]struct {
		alg    ratelimit.Algorithm
		policy string
		names  []string
		q, w   []int64
	}{
		"one":     {hour, "default", []string{"default"}, []int64{100}, []int64{3600}},
		"quotes":  {hour, `a "b" \ c`, []string{`a "b" \ c`}, []int64{100}, []int64{3600}},
		"symbols": {hour, `!#$%&'()*+,-./:;<=>?@[]^_{|}~`, []string{`!#$%&'()*+,-./:;<=>?@[]^_{|}~`}, []int64{100}, []int64{3600}},
		"all": {ratelimit.All{ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10), Burst: 15}, hour}, "p",
			[]string{"p-1", "p-2"}, []int64{15, 100}, []int64{2, 3600}},
		"rolling": {ratelimit.RollingWindow{Quota: 9, Window: 24 * time.Hour, Period: time.Hour, PeriodLimit: 4}, "p",
			[]string{"p", "p-period"}, []int64{9, 4}, []int64{86400, 3600}},
		"huge": {ratelimit.FixedWindow{Limit: math.MaxInt, Window: time.Hour}, "p", []string{"p"}, []int64{999_999_999_999_999}, []int64{3600}},
		"slow": {ratelimit.TokenBucket{Rate: ratelimit.Every(24 * time.Hour), Burst: 1 << 16}, "p", []string{"p"}, []int64{1 << 16}, []int64{86400 << 16}},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := ratelimit.New(tt.alg)
			if err != nil {
				t.Fatal(err)
			}
			h := httplimit.Middleware(l, httplimit.WithPolicyName(tt.policy), httplimit.WithKey(httplimit.Header("K")))(http.NotFoundHandler())
			for range 20 { // allowed, and for most also refused
				r := httptest.NewRequest("GET", "/", nil)
				r.Header.Set("K", "key")
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				d, err := l.Peek(t.Context(), "key")
				if err != nil {
					t.Fatal(err)
				}

				policies := list(t, w.Header()["Ratelimit-Policy"])
				if len(policies) != len(tt.names) {
					t.Fatalf("%d policies, want %d", len(policies), len(tt.names))
				}
				for i, p := range policies {
					if p.Value != tt.names[i] || parameter(t, p, "q") != tt.q[i] || parameter(t, p, "w") != tt.w[i] {
						t.Errorf("policy %d: %+v, want %q, q=%d, w=%d", i, p, tt.names[i], tt.q[i], tt.w[i])
					}
				}
				current := list(t, w.Header()["Ratelimit"])
				if len(current) != 1 {
					t.Fatalf("%d limits, want 1", len(current))
				}
				if r := parameter(t, current[0], "r"); r != min(int64(d.Remaining), 999_999_999_999_999) {
					t.Errorf("r=%d, want %d", r, d.Remaining)
				}
				if len(tt.names) == 1 || w.Code == http.StatusTooManyRequests {
					parameter(t, current[0], "t")
				}
			}
		})
	}
}

func list(t *testing.T, lines []string) (items []httpsfv.Item) {
	t.Helper()
	parsed, err := httpsfv.UnmarshalList(lines)
	if err != nil {
		t.Fatalf("%q: %v", lines, err)
	}
	for _, member := range parsed {
		item, ok := member.(httpsfv.Item)
		if !ok {
			t.Fatalf("%q: %T is not an item", lines, member)
		}
		if _, ok := item.Value.(string); !ok {
			t.Fatalf("%q: %T is not a string", lines, item.Value)
		}
		items = append(items, item)
	}
	return items
}

func parameter(t *testing.T, item httpsfv.Item, name string) int64 {
	t.Helper()
	v, _ := item.Params.Get(name)
	n, ok := v.(int64)
	if !ok {
		t.Fatalf("%+v: parameter %s is %v", item, name, v)
	}
	return n
}
