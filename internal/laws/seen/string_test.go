package seen_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
)

// TestLimiter_Printed: a limiter prints its name, its limit and where its states are.
func TestLimiter_Printed(t *testing.T) {
	bucket := ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10), Burst: 20}
	wrapped := struct{ ratelimit.Store }{new(ratelimit.MemoryStore)}
	for want, opts := range map[string][]ratelimit.Option{
		`ratelimit.Limiter: 10/s, burst 20, in memory`:                                           nil,
		`ratelimit.Limiter "api": 10/s, burst 20, in memory`:                                     {ratelimit.WithName("api")},
		`ratelimit.Limiter "a\"b": 10/s, burst 20, in a database`:                                {ratelimit.WithName(`a"b`), ratelimit.WithStore(fakes.NewMapDB().Store())},
		`ratelimit.Limiter: 10/s, burst 20, or the limit of the key, in memory`:                  {fakes.OwnLimit(bucket)},
		`ratelimit.Limiter "api": 10/s, burst 20, in a store of type struct { ratelimit.Store }`: {ratelimit.WithName("api"), ratelimit.WithStore(wrapped)},
	} {
		l := ratelimit.Must(ratelimit.New(bucket, opts...))
		for _, verb := range []string{"%v", "%+v", "%s"} {
			assert.Equal(t, want, fmt.Sprintf(verb, l))
		}
	}
	both := ratelimit.Must(ratelimit.New(ratelimit.All{bucket, ratelimit.FixedWindow{Limit: 5, Window: time.Minute}}))
	assert.Equal(t, "ratelimit.Limiter: 10/s, burst 20, and 5 in each minute, in memory", fmt.Sprint(both))
}

// TestKeys_NotPrinted: what has a key does not print it, because it may be a secret.
func TestKeys_NotPrinted(t *testing.T) {
	const secret = "sk_live_0123456789abcdef"
	ctx := t.Context()
	l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 9, Window: time.Hour}, ratelimit.WithName("api")))
	held, _, err := l.Hold(ctx, secret, 5)
	require.NoError(t, err)
	one, _, err := l.Hold(ctx, secret, 1)
	require.NoError(t, err)
	bound := ratelimit.For(l, secret)
	all, _, err := ratelimit.HoldAll(ctx, 1, bound, ratelimit.For(l, "other"))
	require.NoError(t, err)
	for want, value := range map[string]any{
		`ratelimit.Reservation of 5 events of a key of ratelimit.Limiter "api"`: held,
		`ratelimit.Reservation of 1 event of a key of ratelimit.Limiter "api"`:  one,
		`ratelimit.Reservation of 2 keys`:                                       all,
		`ratelimit.Reservation of nothing`:                                      new(ratelimit.Reservation),
		`no ratelimit.Reservation`:                                              (*ratelimit.Reservation)(nil),
		`ratelimit.Bound: a key of ratelimit.Limiter "api"`:                     bound,
		`ratelimit.Bound: 3 events of a key of ratelimit.Limiter "api"`:         bound.N(3),
		`ratelimit.Bound: a key of a limiter of type fakes.Wrapped`:             ratelimit.For(fakes.Wrapped{Limiter: l}, secret),
		`ratelimit.Bound without a limiter`:                                     ratelimit.Bound{},
	} {
		for _, verb := range []string{"%v", "%+v", "%s"} {
			assert.Equal(t, want, fmt.Sprintf(verb, value))
		}
	}
	assert.NotContains(t, fmt.Sprint(held.Parts(), []ratelimit.Bound{bound}, l, l.Describe()), secret)
}
