package ratelimit_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

// A type of a user's that embeds an algorithm is refused: nobody knows what its
// other fields mean, or whether it can be compared.
func TestForeignAlgorithm(t *testing.T) {
	type tagged struct {
		ratelimit.TokenBucket
		Labels []string
	}
	type pointing struct{ *ratelimit.TokenBucket }
	bucket := ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)}
	for name, alg := range map[string]ratelimit.Algorithm{
		"embedded":            tagged{TokenBucket: bucket},
		"a pointer to it":     &tagged{TokenBucket: bucket},
		"an embedded pointer": pointing{&bucket},
		"an embedded nil":     pointing{},
		"embedded All":        struct{ ratelimit.All }{ratelimit.All{bucket}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, alg := range []ratelimit.Algorithm{alg, ratelimit.All{bucket, alg}, ratelimit.All{ratelimit.All{alg}}} {
				_, err := ratelimit.New(alg)
				require.ErrorIs(t, err, ratelimit.ErrInvalid)
				assert.ErrorContains(t, err, "must be one of this package's own")
				_, err = ratelimit.NewTransition(alg)
				require.ErrorIs(t, err, ratelimit.ErrInvalid)
			}
			assert.Nil(t, ratelimit.Share(alg, 2))

			// Nor does one from a lookup keep others from being looked up.
			limits := map[string]ratelimit.Algorithm{"foreign": alg, "parts": ratelimit.All{bucket, alg}, "good": ratelimit.FixedWindow{Limit: 3, Window: time.Hour}}
			l, err := ratelimit.New(bucket, ratelimit.WithLimits(func(_ context.Context, key string) (ratelimit.Algorithm, error) {
				return limits[key], nil
			}))
			require.NoError(t, err)
			for range 2 {
				for _, key := range []string{"foreign", "parts"} {
					_, err = l.Take(t.Context(), key, 1)
					require.ErrorIs(t, err, ratelimit.ErrInvalid)
				}
				assert.True(t, l.Allow("good"))
			}
		})
	}
}
