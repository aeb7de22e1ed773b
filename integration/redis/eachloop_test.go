package redis_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/history"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// TestEachIsALoop: TakeEach decides as a loop of Take does, also on keys with limits of their own and
// on a key that occurs several times.
func TestEachIsALoop(t *testing.T) {
	conn := connectors["rueidis"](t, startServer(t).addr())
	for name, alg := range storetest.Algorithms() {
		t.Run(name, func(t *testing.T) {
			s := &history.Twins{Limits: []ratelimit.Algorithm{alg}, Start: began, Tick: time.Microsecond, Kept: "Redis"}
			s.Open = func(func(string) ratelimit.Algorithm) (on history.OpenTwins) {
				tr := &trace{T: t, alg: alg, clk: storetest.NewClock(began), limitOf: func(key string) ratelimit.Algorithm {
					if key == "key 7" {
						return ratelimit.FixedWindow{Limit: 3, Window: time.Minute}
					}
					return nil
				}}
				for _, each := range []bool{true, false} {
					l, err := tr.newLimiter(tr.newStore(conn, prefixes(), cached))
					require.NoError(t, err)
					on.Stores = append(on.Stores, history.Store{Limiters: []ratelimit.Limiter{l}, TakesEach: each})
				}
				on.Clock = tr.clk
				return on
			}
			key := func(i int) string { return fmt.Sprint("key ", i) }
			for seed := range budget.Seeds(t, budget.Histories(1, 5)) {
				next := history.TakesOfMany(history.NewRandom(seed, 20261122), 10*time.Second, key)
				history.Run(t, s, history.AtMost(400, next))
			}
		})
	}
}
