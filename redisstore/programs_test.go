package redisstore

import (
	"math"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/fakes"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

// The error for an invalid option or parameter names it.
func TestInvalid(t *testing.T) {
	for want, opts := range map[string][]Option{
		"WithTimeout's duration is 0s":      {WithTimeout(0)},
		`WithPrefix's prefix is "x@": it`:   {WithPrefix("x@")},
		"WithDenialCache's duration is -1s": {WithDenialCache(-time.Second)},
		"WithLease's events is -1":          {WithLease(-1, time.Second)},
		"WithLease's duration is 0s":        {WithLease(1, 0)},
		"WithBreaker's failures is -1":      {WithBreaker(-1, time.Second)},
		"WithBreaker's cooldown is 0s":      {WithBreaker(5, 0)},
		"option 1 of New is nil":            {WithPrefix("x"), nil},
	} {
		_, err := New(nonsense{}, opts...)
		require.ErrorIs(t, err, ratelimit.ErrInvalid)
		assert.ErrorContains(t, err, want)
	}
	var none *fakeServer
	for _, conn := range []Conn{nil, none} {
		_, err := New(conn)
		require.ErrorIs(t, err, ratelimit.ErrInvalid)
	}

	s, err := New(nonsense{})
	require.NoError(t, err)
	tooMuch := map[string]ratelimit.Algorithm{
		"FixedWindow.Window is 1ns: it must be a multiple of 1µs": ratelimit.FixedWindow{Limit: 1, Window: 1},
		"FixedWindow.Window is 900000h0m0s":                       ratelimit.FixedWindow{Limit: 1, Window: 900000 * time.Hour},
		"SlidingWindow.Window / Segments is 1.5µs":                ratelimit.SlidingWindow{Limit: 1, Window: 3 * time.Microsecond, Segments: 2},
		"SlidingLog.Window is 1.001µs":                            ratelimit.SlidingLog{Limit: 1, Window: 1001},
		"RollingWindow.Period is 1ns":                             ratelimit.RollingWindow{Quota: 1, Window: 10, Period: 1},
		"TokenBucket.Rate.Per is 1.5µs":                           ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: 1, Per: 1500}, Refill: ratelimit.RefillInterval},
		"TokenBucket is {1/d, 1000000 at once}: it must fill up":  ratelimit.TokenBucket{Rate: ratelimit.PerDay(1), Burst: 1_000_000},
		"SlidingWindow.Segments is 4097: it must be at most 4096": ratelimit.SlidingWindow{Limit: 1, Window: 4097 * time.Second, Segments: 4097},
		"RollingWindow.Window / Period is 5000: it must be":       ratelimit.RollingWindow{Quota: 1, Window: 5000 * time.Second, Period: time.Second},
		"Lockout.Window is 1ns":                                   ratelimit.Lockout{Limit: 1, Window: 1, First: time.Minute},
		"Lockout.First is 1.001µs":                                ratelimit.Lockout{Limit: 1, Window: time.Minute, First: 1001},
		"Lockout.Longest is 60.5µs":                               ratelimit.Lockout{Limit: 1, Window: time.Minute, First: time.Microsecond, Longest: 60_500},
		"must warm up within 720h0m0s":                            ratelimit.WarmingUp{Rate: ratelimit.PerSecond(1), Warmup: 800 * time.Hour},
		"All[1].FixedWindow.Window is 1ns": ratelimit.All{
			ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)},
			ratelimit.FixedWindow{Limit: 1, Window: 1},
		},

		"must have a Per of at most 625h29m59.813685248s, or a multiple of 1µs up to 625499h": ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: 1, Per: 626*time.Hour + 1}},
	}
	if one := 1; strconv.IntSize == 64 {
		tooMuch["FixedWindow.Limit is 2251799813685249"] = ratelimit.FixedWindow{Limit: one<<51 + 1, Window: time.Hour}
		tooMuch["TokenBucket.Rate is 4503599627370497/s: it has too many"] = ratelimit.TokenBucket{Rate: ratelimit.PerSecond(one<<52 + 1)}
		tooMuch["LeakyBucket.Rate is 9223372036854775807/s: it has too many"] = ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(math.MaxInt)}
	}
	for want, alg := range tooMuch {
		_, err := ratelimit.New(alg, ratelimit.WithStore(s), ratelimit.WithName("test"))
		require.ErrorIs(t, err, ratelimit.ErrInvalid, want)
		assert.ErrorContains(t, err, want)
	}
}

// The number of cached programs is bounded.
func TestPrograms(t *testing.T) {
	var p programs
	for i := range maxPrograms + 10 {
		tr, err := fakes.NewLimit(ratelimit.FixedWindow{Limit: i + 1, Window: time.Hour})
		require.NoError(t, err)
		prog, err := p.get(tr)
		require.NoError(t, err)
		again, err := p.get(tr)
		require.NoError(t, err)
		require.Same(t, prog, again)
		require.Equal(t, i+1, prog.Most)
	}
	assert.LessOrEqual(t, len(p.known), maxPrograms)
}

// A limit has one program, even if several calls meet it first: calls share a command, and a
// denial is repeated, only for the same program.
func TestOneProgram(t *testing.T) {
	for i := range 1000 {
		tr, err := fakes.NewLimit(ratelimit.FixedWindow{Limit: i + 1, Window: time.Hour})
		require.NoError(t, err)
		var p programs
		var wg sync.WaitGroup
		got := make([]*program, 8)
		for j := range got {
			wg.Go(func() {
				var err error
				got[j], err = p.get(tr)
				assert.NoError(t, err)
			})
		}
		wg.Wait()
		for _, prog := range got {
			require.Same(t, got[0], prog)
		}
	}
}
