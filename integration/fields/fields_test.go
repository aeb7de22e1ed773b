// Package fields_test checks the header fields of package httplimit with a third-party parser of
// structured fields (RFC 9651).
package fields_test

import (
	"math"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/httplimit/client"
	"github.com/ratelimit-go/ratelimit/httplimit/key"
	"github.com/ratelimit-go/ratelimit/internal/budget"
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
		"huge": {ratelimit.FixedWindow{Limit: min(math.MaxInt, 1<<62), Window: time.Hour}, "p", []string{"p"}, []int64{999_999_999_999_999}, []int64{3600}},
		"slow": {ratelimit.TokenBucket{Rate: ratelimit.Every(24 * time.Hour), Burst: 1 << 16}, "p", []string{"p"}, []int64{1 << 16}, []int64{86400 << 16}},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := ratelimit.New(tt.alg)
			if err != nil {
				t.Fatal(err)
			}
			h := httplimit.Middleware(l, httplimit.WithPolicyName(tt.policy), httplimit.WithKey(key.Header("K")))(http.NotFoundHandler())
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

// TestDraft7Parses parses the header fields of Draft7: a dictionary of integers, and a list of
// integers with a window.
func TestDraft7Parses(t *testing.T) {
	l := ratelimit.Must(ratelimit.New(ratelimit.All{
		ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10), Burst: 15},
		ratelimit.FixedWindow{Limit: 3, Window: time.Hour, Start: ratelimit.StartOnFirstEvent},
	}))
	h := httplimit.Middleware(l, httplimit.WithHeaders(httplimit.Draft7))(http.NotFoundHandler())
	for left := int64(2); left >= 0; left-- {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		current, err := httpsfv.UnmarshalDictionary(w.Header()["Ratelimit"])
		if err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]int64{"limit": 3, "remaining": left, "reset": 3600} {
			member, _ := current.Get(name)
			if item, ok := member.(httpsfv.Item); !ok || item.Value != want {
				t.Errorf("%s is %+v, want %d", name, member, want)
			}
		}
		policies, err := httpsfv.UnmarshalList(w.Header()["Ratelimit-Policy"])
		if err != nil || len(policies) != 2 {
			t.Fatalf("%d policies, %v", len(policies), err)
		}
		for i, want := range [][2]int64{{15, 2}, {3, 3600}} {
			if item, ok := policies[i].(httpsfv.Item); !ok || item.Value != want[0] || parameter(t, item, "w") != want[1] {
				t.Errorf("policy %d is %+v, want %v", i, policies[i], want)
			}
		}
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

// TestHeedParses compares what client.Transport reads in RateLimit fields with what a
// third-party parser reads, for fields that are changed at random.
func TestHeedParses(t *testing.T) {
	random := budget.Rand(t)
	const letters = `aAbrtz019"\\;;==,,:?.-*_/+ ~!é`
	valid := 0
	for range 20_000 {
		field := []string{`"default";r=50;t=30`, `"a\"b";x;r=1;t=2;pk=:QXBwLTk5OQ==:`, `a;r=3;t=40,"b";r=2;t=50;y=?1`,
			`"a";z=1.5;t=9;r=8, *b/c:d;r=-1`}[random.IntN(4)]
		for range random.IntN(4) {
			at, c := random.IntN(len(field)), letters[random.IntN(len(letters))]
			switch random.IntN(3) {
			case 0:
				field = field[:at] + string(c) + field[at:]
			case 1:
				field = field[:at] + string(c) + field[at+1:]
			case 2:
				field = field[:at] + field[at+1:]
			}
		}
		var want time.Duration
		members, err := httpsfv.UnmarshalList([]string{field})
		if err != nil {
			members, err = httpsfv.UnmarshalList([]string{padded(field)})
		}
		if err == nil {
			valid++
			for _, m := range members {
				item, ok := m.(httpsfv.Item)
				if !ok {
					continue
				}
				left, _ := item.Params.Get("r")
				reset, _ := item.Params.Get("t")
				r, known := left.(int64)
				s, also := reset.(int64)
				if known && also && r >= 0 && s > 0 {
					want = max(want, time.Duration(min(s, 86400))*time.Second/time.Duration(r+1))
				}
			}
		}
		if got := heeded(t, field); got != want {
			t.Fatalf("%q: Transport waits for %v, want %v", field, got, want)
		}
	}
	if valid < 2000 || valid > 18_000 {
		t.Errorf("%d fields are valid", valid)
	}
}

// byteSequence finds byte sequences in a field.
var byteSequence = regexp.MustCompile(`(^|[=, ]):([A-Za-z0-9+/]*)=*:`)

// padded returns a field whose byte sequences have their padding: parsers should not insist on it
// (RFC 9651, 4.2.7), but httpsfv does.
func padded(field string) string {
	return byteSequence.ReplaceAllStringFunc(field, func(found string) string {
		bytes := strings.TrimRight(strings.TrimSuffix(found, ":"), "=")
		content := bytes[strings.Index(bytes, ":")+1:]
		return bytes + strings.Repeat("=", -len(content)&3) + ":"
	})
}

// heeded returns for how long a Transport waits after a response with the given RateLimit field.
func heeded(t *testing.T, field string) (waited time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		tr := &client.Transport{
			Limiter: ratelimit.Must(ratelimit.New(ratelimit.Unlimited{})),
			Quota:   client.RateLimit,
			Base: responds(func() *http.Response {
				return &http.Response{StatusCode: 200, Header: http.Header{"Ratelimit": {field}}, Body: http.NoBody}
			}),
		}
		start := time.Now()
		for range 2 {
			resp, err := tr.RoundTrip(httptest.NewRequest("GET", "http://example.com", nil))
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
		}
		waited = time.Since(start)
	})
	return waited
}

type responds func() *http.Response

func (f responds) RoundTrip(*http.Request) (*http.Response, error) { return f(), nil }
