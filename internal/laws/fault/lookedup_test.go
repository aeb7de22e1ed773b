package fault_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
)

// A lookupsOf counts the lookups of calls whose contexts have names.
type lookupsOf struct {
	alg ratelimit.Algorithm

	mu     sync.Mutex // protects counts
	counts map[string]int
}

type nameKey struct{}

func named(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, nameKey{}, name)
}

func (l *lookupsOf) lookup(ctx context.Context, _ string) (ratelimit.Algorithm, error) {
	name, _ := ctx.Value(nameKey{}).(string)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts[name]++
	return l.alg, nil
}

// of returns how many lookups there were for the calls of a name.
func (l *lookupsOf) of(name string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.counts[name]
}

// TestNothingIsLookedUpToGiveBack: events that are cancelled, or given back because no caller gets
// them, need no lookup, even if others stand in line on the key. So a lookup does not hold them up,
// and a lookup that panics does so in a goroutine of a caller.
func TestNothingIsLookedUpToGiveBack(t *testing.T) {
	for store, make := range fakes.Stores {
		t.Run(store, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lookups := &lookupsOf{alg: ratelimit.TokenBucket{Rate: ratelimit.PerSecond(5000), Burst: 5}, counts: map[string]int{}}
				l := ratelimit.Must(ratelimit.New(ratelimit.Blocked{}, ratelimit.WithStore(make()),
					ratelimit.WithName("api"), ratelimit.WithLimits(lookups.lookup)))
				first, _, err := l.Hold(named(t.Context(), "holder"), "key", 5)
				require.NoError(t, err)
				ahead, _, err := l.Reserve(named(t.Context(), "holder"), "key", 5)
				require.NoError(t, err)
				waiters, stop := context.WithCancel(named(t.Context(), "waiters"))
				defer stop()
				for range 8 {
					go func() { _ = l.Wait(waiters, "key") }()
				}
				synctest.Wait()
				ahead.Cancel()
				first.Cancel()
				require.NoError(t, l.Reset(t.Context(), "key")) // whoever has a turn gives it back
				synctest.Wait()
				assert.Equal(t, 2, lookups.of("holder"))
				assert.Positive(t, lookups.of("waiters"))
				assert.Zero(t, lookups.of(""))
			})
		})
	}
}

// A crowded limiter is one that New has not made. It denies, and before that others stand in line elsewhere.
type crowded struct {
	ratelimit.Limiter
	wait func()
}

func (c crowded) Take(context.Context, string, int) (ratelimit.Decision, error) {
	go c.wait()
	synctest.Wait()
	return ratelimit.Decision{RetryAfter: time.Second}, nil
}

// TakeAll looks each limit up once. What it gives back is then told by that limit, even if others stand in line now.
func TestTakeAllLooksUpOnce(t *testing.T) {
	for store, make := range fakes.Stores {
		t.Run(store, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lookups := &lookupsOf{alg: ratelimit.FixedWindow{Limit: 5, Window: time.Hour}, counts: map[string]int{}}
				l := ratelimit.Must(ratelimit.New(ratelimit.Blocked{}, ratelimit.WithStore(make()),
					ratelimit.WithName("api"), ratelimit.WithLimits(lookups.lookup)))
				ctx, stop := context.WithCancel(named(t.Context(), "waiter"))
				defer stop()
				denies := crowded{l, func() { _ = l.WaitN(ctx, "key", 5) }}
				d, err := ratelimit.TakeAll(named(t.Context(), "all"), 3, ratelimit.For(l, "key"), ratelimit.For(denies, "other"))
				require.NoError(t, err)
				assert.False(t, d.Allowed)
				assert.Equal(t, 1, lookups.of("all"))
			})
		})
	}
}
