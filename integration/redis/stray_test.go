package redis_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/redisstore"
)

// What a server has held while it stalled, for callers that did not wait for its answer or have
// left, is given back once it answers: an InFlight has all its slots again, and not after its
// Timeout.
func TestStallsTakeNoSlots(t *testing.T) {
	for name, create := range makers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startServer(t)
			store := create(t, s.addr(), redisstore.WithBreaker(0, 0)) // so that each stall is asked
			algs := map[string]ratelimit.Algorithm{
				"InFlight":      ratelimit.InFlight{Limit: 5, Timeout: 10 * time.Minute},
				"All":           ratelimit.All{hourly(5), ratelimit.InFlight{Limit: 5, Timeout: 10 * time.Minute}},
				"SlidingWindow": ratelimit.SlidingWindow{Limit: 5, Window: time.Hour},
			}
			limiters := map[string]ratelimit.Limiter{}
			for name, alg := range algs {
				l := limiter(t, store, alg)
				limiters[name] = l
				eventually(t, "the server knows the scripts, so that a command holds at once", func() bool {
					_, _, alone := l.Hold(t.Context(), "warm", 1)
					_, _, together := ratelimit.HoldAll(t.Context(), 1,
						ratelimit.For(l, "warm together"), ratelimit.For(l, "warm together too"))
					return alone == nil && together == nil
				})
			}
			fresh := func(l ratelimit.Limiter, key string) {
				t.Helper()
				eventually(t, "all events are free of "+key, func() bool {
					d, err := l.Peek(t.Context(), key)
					return err == nil && d.Remaining == 5
				})
			}
			for range 5 { // stalls
				s.stop()
				gone, leave := context.WithCancel(t.Context())
				time.AfterFunc(5*time.Millisecond, leave)
				var left sync.WaitGroup
				for name, l := range limiters {
					left.Go(func() {
						_, _, err := l.Hold(gone, "left", 1)
						assert.Error(t, err, name)
					})
					r, d, err := l.Hold(t.Context(), "late", 1)
					require.Error(t, err, name)
					require.True(t, d.Allowed, "FailOpen allows it")
					require.NotNil(t, r)
					_, _, err = ratelimit.HoldAll(t.Context(), 1,
						ratelimit.For(l, "together"), ratelimit.For(l, "together too"))
					require.Error(t, err, name)
				}
				left.Wait() // a caller that is late would get an answer, and what it holds
				s.cont()
			}
			for _, l := range limiters {
				for _, key := range []string{"late", "left", "together", "together too"} {
					fresh(l, key)
				}
			}
		})
	}
}

// A Release that the server does not execute, because it stalls or refuses commands, frees the slot
// as soon as it works again.
func TestStalledReleases(t *testing.T) {
	for name, create := range makers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startServer(t)
			l := limiter(t, create(t, s.addr()), ratelimit.InFlight{Limit: 5, Timeout: 10 * time.Minute})
			var held []*ratelimit.Reservation
			for range 5 {
				r, d, err := l.Hold(t.Context(), "k", 1)
				require.NoError(t, err)
				require.True(t, d.Allowed)
				held = append(held, r)
			}
			s.stop()
			for _, r := range held[:4] {
				require.Error(t, r.Release(t.Context()))
			}
			s.cont()
			eventually(t, "all but one are free", func() bool {
				d, err := l.Peek(t.Context(), "k")
				return err == nil && d.Remaining == 4
			})

			// While the server has no memory, it executes no script that writes.
			s.do("CONFIG", "SET", "maxmemory", "1")
			err := held[4].Release(t.Context())
			require.ErrorContains(t, err, "OOM")
			s.do("CONFIG", "SET", "maxmemory", "0")
			require.NoError(t, held[4].Release(t.Context()))
			d, err := l.Peek(t.Context(), "k")
			require.NoError(t, err)
			assert.Equal(t, 5, d.Remaining)
		})
	}
}
