package servers

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

// Of a long list of holds, most commands write only the end. At most 4,096 holds are open: then the
// oldest ends early.
func TestManyHolds(t *testing.T) {
	conn := connectors["rueidis"](t, startServer(t).addr())
	for _, alg := range []ratelimit.Algorithm{
		ratelimit.TokenBucket{Rate: ratelimit.PerHour(7000), Burst: 20_000},
		ratelimit.SlidingLog{Limit: 20_000, Window: time.Hour},
		ratelimit.All{ratelimit.LeakyBucket{Rate: ratelimit.PerHour(7000), Capacity: 20_000}, ratelimit.FixedWindow{Limit: 20_000, Window: time.Hour}},
	} {
		tr := newTraceOf(t, conn, prefixes(), alg, uncached)
		_, err := tr.here.Peek(t.Context(), "k") // sets the request
		require.NoError(t, err)
		hold := func(id int) ratelimit.Request {
			return ratelimit.Request{Op: ratelimit.OpHold, N: 2, Hold: ratelimit.Handle{ID: uint64(id), For: time.Hour, GiveBack: id%3 == 0}}
		}
		for id := 1; id <= 40; id++ {
			tr.clk.Advance(time.Millisecond)
			tr.ask("k", hold(id))
			tr.ask("k", ratelimit.Request{Op: ratelimit.OpTake, N: 1})
			if id%4 == 0 {
				assert.True(t, tr.ask("k", ratelimit.Request{Op: ratelimit.OpExtend, Hold: ratelimit.Handle{ID: uint64(id / 2), For: 2 * time.Hour}}).Held)
				assert.True(t, tr.ask("k", ratelimit.Request{Op: ratelimit.OpSettle, N: id % 3, Of: 2, Hold: ratelimit.Handle{ID: uint64(id - 1)}}).Held)
			}
		}
		for id := 41; id <= 4096+14; id++ { // 30 of the first 40 are open
			req := hold(id).At(tr.clk.Now())
			for _, s := range []ratelimit.States{&tr.opened, tr.store} {
				res, err := s.Apply(t.Context(), "k", tr.store.t, req)
				require.NoError(t, err)
				require.True(t, res.Held)
			}
		}
		tr.compareStates("k")
		assert.False(t, tr.ask("k", ratelimit.Request{Op: ratelimit.OpSettle, N: 0, Of: 2, Hold: ratelimit.Handle{ID: 1}}).Held)
		assert.True(t, tr.ask("k", ratelimit.Request{Op: ratelimit.OpSettle, N: 0, Of: 2, Hold: ratelimit.Handle{ID: 4000}}).Held)
		tr.clk.Advance(90 * time.Minute)
		tr.ask("k", ratelimit.Request{Op: ratelimit.OpTake, N: 1})
	}
}
