package ratelimit_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/ratelimit-go/ratelimit"
)

// TestTakeAllLooksUpOnce: the limit of a key is looked up once, wherever its state is, and even if
// it needs none or is not known.
func TestTakeAllLooksUpOnce(t *testing.T) {
	unknown := errors.New("unknown")
	for name, store := range map[string]func() ratelimit.Store{
		"memory": func() ratelimit.Store { return ratelimit.NewMemoryStore() },
		"bytes":  func() ratelimit.Store { return newMapDB().store() },
	} {
		for limit, alg := range map[string]ratelimit.Algorithm{
			"window": ratelimit.FixedWindow{Limit: 5, Window: time.Hour}, "unlimited": ratelimit.Unlimited{}, "blocked": ratelimit.Blocked{}, "unknown": nil,
		} {
			t.Run(name+"/"+limit, func(t *testing.T) {
				lookups := 0
				l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 1, Window: time.Hour}, ratelimit.WithStore(store()), ratelimit.WithFailureLog(nil),
					ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) {
						if lookups++; alg == nil {
							return nil, unknown
						}
						return alg, nil
					})))
				d, err := ratelimit.TakeAll(t.Context(), 1, ratelimit.For(l, "k"))
				if alg == nil {
					assert.ErrorIs(t, err, unknown)
				} else {
					assert.NoError(t, err)
				}
				assert.Equal(t, limit != "blocked", d.Allowed)
				assert.Equal(t, 1, lookups)
				r, d, _ := ratelimit.HoldAll(t.Context(), 1, ratelimit.For(l, "k"))
				assert.Equal(t, d.Allowed, r != nil)
				assert.Equal(t, 2, lookups)
				if alg != nil {
					_, _ = ratelimit.TakeAll(t.Context(), 1, ratelimit.For(l, "k"), ratelimit.For(l, "other"))
					assert.Equal(t, 4, lookups)
				}
			})
		}
	}
}
