package limit_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/storetest"
)

func TestInWords(t *testing.T) {
	const day = 24 * time.Hour
	for _, tt := range []struct {
		alg  ratelimit.Algorithm
		want string
	}{
		{ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)}, "10/s"},
		{ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10), Burst: 10}, "10/s"},
		{ratelimit.TokenBucket{Rate: ratelimit.PerMinute(1000), Burst: 20}, "1,000/m, burst 20"},
		{ratelimit.TokenBucket{Rate: ratelimit.Every(250 * time.Millisecond), Burst: 1_000_000}, "1/250ms, burst 1,000,000"},
		{ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10), Refill: ratelimit.RefillInterval}, "10 every second"},
		{ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: 5, Per: 90 * time.Second}, Burst: 7, Refill: ratelimit.RefillInterval}, "5 every 1m30s, burst 7"},
		{ratelimit.LeakyBucket{Rate: ratelimit.PerHour(2)}, "2/h, queue of 1"},
		{ratelimit.LeakyBucket{Rate: ratelimit.Every(time.Microsecond), Capacity: 5000}, "1/us, queue of 5,000"},
		{ratelimit.FixedWindow{Limit: 1000, Window: day}, "1,000 in each day"},
		{ratelimit.FixedWindow{Limit: 5, Window: 36 * time.Hour}, "5 in each 36h"},
		{ratelimit.FixedWindow{Limit: 5, Window: 7 * day, Start: ratelimit.StartOnFirstEvent}, "5 in each 7d from the first event"},
		{ratelimit.CalendarWindow{Limit: 10_000, Every: ratelimit.Month, Zone: "Europe/London"}, "10,000 in each month of Europe/London"},
		{
			ratelimit.CalendarWindow{Limit: 10_000, Every: ratelimit.Month, Zone: "Europe/London", Start: 31},
			"10,000 in each month of Europe/London, from the 31st",
		},
		{ratelimit.CalendarWindow{Limit: 10_000, Every: ratelimit.Month, Start: 22, Hour: 4}, "10,000 in each month of UTC, from the 22nd, 04:00"},
		{ratelimit.CalendarWindow{Limit: 50, Every: ratelimit.Day, Zone: "Asia/Tokyo", Hour: 4}, "50 in each day of Asia/Tokyo, from 04:00"},
		{ratelimit.CalendarWindow{Limit: 50, Every: ratelimit.Day}, "50 in each day of UTC"},
		{ratelimit.CalendarWindow{Limit: 50, Every: ratelimit.Week, Start: 1}, "50 in each week of UTC"},
		{ratelimit.CalendarWindow{Limit: 50, Every: ratelimit.Week, Start: 7, Hour: 23}, "50 in each week of UTC, from Sunday, 23:00"},
		{ratelimit.CalendarWindow{Limit: 50, Every: ratelimit.Quarter, Start: 1231}, "50 in each quarter of UTC, from 31 December"},
		{ratelimit.CalendarWindow{Limit: 50, Every: ratelimit.Year, Start: 406}, "50 in each year of UTC, from 6 April"},
		{ratelimit.SlidingWindow{Limit: 5, Window: time.Minute}, "5 in any minute, estimated"},
		{ratelimit.SlidingWindow{Limit: 5, Window: time.Minute, Segments: 6}, "5 in any minute, estimated from 6 segments"},
		{ratelimit.SlidingLog{Limit: 5, Window: 10 * time.Second}, "5 in any 10s"},
		{ratelimit.SlidingLog{Limit: 5, Window: 15 * time.Minute, CountDenied: true}, "5 in any 15m, denials count"},
		{ratelimit.RollingWindow{Quota: 100, Window: day, Period: time.Hour}, "100 per day, recalculated every hour"},
		{ratelimit.RollingWindow{Quota: 100, Window: day, Period: time.Hour, PeriodLimit: 10}, "100 per day, recalculated every hour, at most 10 per hour"},
		{ratelimit.WarmingUp{Rate: ratelimit.PerSecond(100), Warmup: 3 * time.Second}, "100/s, warm-up 3s"},
		{ratelimit.WarmingUp{Rate: ratelimit.PerSecond(100), Warmup: time.Minute, ColdFactor: 2.5}, "100/s, warm-up 1m, cold factor 2.5"},
		{ratelimit.InFlight{Limit: 5, Timeout: time.Minute}, "5 at once, each for at most 1m"},
		{ratelimit.Lockout{Limit: 5, Window: 15 * time.Minute, First: time.Minute}, "locked for 1m by 5 within 15m"},
		{ratelimit.Lockout{Limit: 1000, Window: time.Second, First: 90 * time.Second, Longest: day}, "locked for 1m30s by 1,000 within 1s, doubling up to 1d"},
		{ratelimit.Unlimited{}, "unlimited"},
		{ratelimit.Blocked{}, "blocked"},
		{
			ratelimit.All{ratelimit.InFlight{Limit: 5, Timeout: time.Minute}, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(3)}},
			"5 at once, each for at most 1m, and 3/s",
		},
		{ratelimit.All{ratelimit.TokenBucket{Rate: ratelimit.PerSecond(3)}}, "all of 3/s"},
		{
			ratelimit.All{ratelimit.All{ratelimit.Unlimited{}, ratelimit.All{ratelimit.Blocked{}}}, ratelimit.Unlimited{}},
			"unlimited, and blocked, and unlimited",
		},
		{ratelimit.FixedWindow{Limit: math.MaxInt32, Window: math.MaxInt64}, "2,147,483,647 in each 2562047h47m16.854775807s"},
		{
			ratelimit.Share(ratelimit.All{ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)}, ratelimit.FixedWindow{Limit: 2000, Window: day}}, 3),
			"10/3s, burst 3, and 666 in each day",
		},
	} {
		assert.Equal(t, tt.want, tt.alg.String())
		for _, verb := range []string{"%v", "%+v", "%s"} {
			assert.Equal(t, tt.want, fmt.Sprintf(verb, tt.alg))
		}
		assert.Equal(t, tt.want, mustLimit(t, tt.alg).Spec.String(), "the limit that is made of it")
	}
}

// What New refuses has words, too: it may be printed before, or to find out why.
func TestInvalidInWords(t *testing.T) {
	long := ratelimit.All(slices.Repeat([]ratelimit.Algorithm{ratelimit.Blocked{}}, 1025))
	for _, tt := range []struct {
		alg  ratelimit.Algorithm
		want string
	}{
		{ratelimit.TokenBucket{}, "0/0s"},
		{
			ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: math.MinInt32, Per: math.MinInt64}, Burst: -1000},
			"-2,147,483,648/-2562047h47m16.854775808s, burst -1,000",
		},
		{ratelimit.TokenBucket{Rate: ratelimit.PerDay(math.MaxInt32), Burst: 1, Refill: 7}, "2,147,483,647/d, Refill(7), burst 1"},
		{ratelimit.LeakyBucket{Capacity: -1}, "0/0s, queue of -1"},
		{ratelimit.FixedWindow{Start: -1}, "0 in each 0s, Start(-1)"},
		{ratelimit.CalendarWindow{}, "0 in each Unit(0) of UTC"},
		{ratelimit.CalendarWindow{Every: 6, Start: 1, Hour: -1}, "0 in each Unit(6) of UTC, from Start(1), -1:00"},
		{ratelimit.CalendarWindow{Limit: 1, Every: ratelimit.Day, Zone: "Local"}, "1 in each day of Local"},
		{ratelimit.CalendarWindow{Limit: 1, Every: ratelimit.Year, Start: 230}, "1 in each year of UTC, from Start(230)"},
		{ratelimit.SlidingWindow{Segments: -1}, "0 in any 0s, estimated from -1 segments"},
		{ratelimit.SlidingLog{Limit: 999, Window: -48 * time.Hour}, "999 in any -48h"},
		{ratelimit.RollingWindow{PeriodLimit: -1}, "0 per 0s, recalculated every 0s, at most -1 per 0s"},
		{ratelimit.WarmingUp{Rate: ratelimit.PerSecond(1), ColdFactor: math.NaN()}, "1/s, warm-up 0s, cold factor NaN"},
		{ratelimit.WarmingUp{ColdFactor: math.Inf(-1)}, "0/0s, warm-up 0s, cold factor -Inf"},
		{ratelimit.InFlight{}, "0 at once, each for at most 0s"},
		{ratelimit.Lockout{Longest: -1}, "locked for 0s by 0 within 0s, doubling up to -1ns"},
		{ratelimit.All{}, "all of nothing"},
		{ratelimit.All(nil), "all of nothing"},
		{ratelimit.All{ratelimit.Blocked{}, ratelimit.All{}}, "blocked, and nothing"},
		{ratelimit.All{nil, (*ratelimit.FixedWindow)(nil), ratelimit.Blocked{}}, "<nil>, and *ratelimit.FixedWindow, and blocked"},
		{long, strings.Repeat("blocked, and ", 1024) + "…"},
	} {
		assert.Equal(t, tt.want, tt.alg.String())
		assert.Equal(t, tt.want, fmt.Sprint(tt.alg))
		_, err := ratelimit.New(tt.alg)
		assert.ErrorIs(t, err, ratelimit.ErrInvalid)
	}
}

// An All that contains itself, or has more parts than anybody waits for, has words all the same.
func TestEndlessInWords(t *testing.T) {
	within := make(ratelimit.All, 3)
	for i := range within {
		within[i] = within
	}
	wide := ratelimit.All{}
	for range 10 { // a tree with 1,000¹⁰ Alls
		wide = slices.Repeat(ratelimit.All{wide}, 1000)
	}
	for _, alg := range []ratelimit.Algorithm{within, wide} {
		words := alg.String()
		assert.Equal(t, 1024, strings.Count(words, ", and "))
		assert.True(t, strings.HasSuffix(words, ", and …"))
	}
}

// TestOtherLimitsHaveOtherWords: an error that names two limits of one name says how they differ.
// TestEveryFieldIsStored looks at the fields of each algorithm.
func TestOtherLimitsHaveOtherWords(t *testing.T) {
	named := make(map[string]string)
	for name, alg := range storetest.Algorithms() {
		words := alg.String()
		assert.NotContains(t, named, words, "%s", name)
		named[words] = name
	}
}

// A program that gives two limiters one name is told what the limits are.
func TestLimitsOfOneNameInWords(t *testing.T) {
	store := ratelimit.WithStore(new(ratelimit.MemoryStore))
	_, err := ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10), Burst: 20}, store, ratelimit.WithName("api"))
	assert.NoError(t, err)
	_, err = ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)}, store, ratelimit.WithName("api"))
	assert.ErrorIs(t, err, ratelimit.ErrInvalid)
	assert.ErrorContains(t, err, `a limiter named "api", with 10/s, burst 20: give the limiter with 10/s another name`)

	ownLimits := ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return nil, nil })
	_, err = ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10), Burst: 20}, store, ratelimit.WithName("api"), ownLimits)
	assert.ErrorContains(t, err, "give the limiter with 10/s, burst 20, and limits by key another name")
}
