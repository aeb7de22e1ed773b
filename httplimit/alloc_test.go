package httplimit_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/httplimit/clientip"
)

// discard is a ResponseWriter that does not allocate.
type discard struct{ header http.Header }

func (d discard) Header() http.Header         { return d.header }
func (d discard) Write(p []byte) (int, error) { return len(p), nil }
func (d discard) WriteHeader(int)             {}

var nothing = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})

// TestAllocations checks that only the values of header fields (a slice and a string
// each), the prefix of an IPv6 client, and what WithSettleAtEnd and an InFlight need are allocated.
func TestAllocations(t *testing.T) {
	l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(1e9)})
	held, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(1e9)})
	flight, _ := limiter(t, ratelimit.InFlight{Limit: 1, Timeout: time.Hour})
	own, err := ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(1e9)}, ratelimit.WithLimits(
		func(context.Context, string) (ratelimit.Algorithm, error) { return nil, nil }))
	require.NoError(t, err)
	w := discard{make(http.Header)}
	for _, tt := range []struct {
		name string
		opts []httplimit.Option
		peer string
		want float64
		l    ratelimit.Limiter // instead of l
	}{
		{"no fields", []httplimit.Option{httplimit.WithHeaders(httplimit.None)}, "192.0.2.1:1", 0, nil},
		{"fields", nil, "192.0.2.1:1", 2, nil},
		{"fields, draft 7", []httplimit.Option{httplimit.WithHeaders(httplimit.Draft7)}, "192.0.2.1:1", 3, nil},
		{"fields, legacy", []httplimit.Option{httplimit.WithHeaders(httplimit.Legacy)}, "192.0.2.1:1", 6, nil},
		{
			"behind a proxy",
			[]httplimit.Option{httplimit.WithHeaders(httplimit.None), httplimit.WithKey(clientip.Of(clientip.TrustedHops(1)))},
			"10.1.1.1:1", 1, nil,
		},
		{"settled", []httplimit.Option{httplimit.WithHeaders(httplimit.None), httplimit.WithSettleAtEnd(httplimit.ByCost)}, "192.0.2.1:1", 6, held},
		{
			"settled, with ends",
			[]httplimit.Option{httplimit.WithHeaders(httplimit.None), httplimit.WithSettleAtEnd(httplimit.ByCost, ratelimit.GiveBack())},
			"192.0.2.1:1", 7, held,
		},
		{"with the decision", []httplimit.Option{httplimit.WithHeaders(httplimit.None), httplimit.WithVerdict()}, "192.0.2.1:1", 3, nil},
		{"in flight", []httplimit.Option{httplimit.WithHeaders(httplimit.None)}, "192.0.2.1:1", 2, flight},
		{"limits of keys' own", []httplimit.Option{httplimit.WithHeaders(httplimit.None)}, "192.0.2.1:1", 0, own},
		{"IPv6", []httplimit.Option{httplimit.WithHeaders(httplimit.None)}, "[2001:db8::1]:1", 1, nil},
	} {
		if tt.l == nil {
			tt.l = l
		}
		h := httplimit.Middleware(tt.l, tt.opts...)(nothing)
		r := from(tt.peer, "X-Forwarded-For", "1.1.1.1, 192.0.2.1")
		assert.Equal(t, tt.want, testing.AllocsPerRun(100, func() { clear(w.header); h.ServeHTTP(w, r) }), tt.name)
	}
}

func BenchmarkMiddleware(b *testing.B) {
	l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(1e9)}))
	spent := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)}))
	spent.Allow("192.0.2.1")
	for _, bb := range []struct {
		name string
		h    http.Handler
	}{
		{"allowed", httplimit.Middleware(l)(nothing)},
		{"allowed/fields=none", httplimit.Middleware(l, httplimit.WithHeaders(httplimit.None))(nothing)},
		{"settled/fields=none", httplimit.Middleware(l, httplimit.WithHeaders(httplimit.None), httplimit.WithSettleAtEnd(httplimit.ByCost))(nothing)},
		{"denied", httplimit.Middleware(spent)(nothing)},
	} {
		b.Run(bb.name, func(b *testing.B) {
			b.ReportAllocs()
			w, r := discard{make(http.Header)}, from("192.0.2.1:1234")
			for b.Loop() {
				clear(w.header)
				bb.h.ServeHTTP(w, r)
			}
		})
	}
}
