package redis_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/redisstore"
)

// All events that are given back arrive, several calls in one command, while another process writes
// to the key all the time.
func TestGivingBack(t *testing.T) {
	const callers, rounds, each = 20, 10, 7
	for name, w := range distances() {
		for client, create := range clients(t) {
			t.Run(client+"/"+name, func(t *testing.T) {
				t.Parallel()
				s := startServer(t)
				store := create(t, startWire(t, s.addr(), w).addr(), redisstore.WithTimeout(patient))
				alg := hourly(1e9)
				l := limiter(t, store, alg)
				other := limiter(t, create(t, s.addr(), redisstore.WithTimeout(patient)), alg)

				ctx, stop := context.WithCancel(t.Context())
				var busy sync.WaitGroup
				var spent atomic.Int64 // by the other process
				for range 2 {
					busy.Go(func() {
						for ctx.Err() == nil {
							_, err := other.Take(context.Background(), "k", 1)
							require.NoError(t, err)
							spent.Add(1)
						}
					})
				}
				var wg sync.WaitGroup
				for range callers {
					wg.Go(func() {
						for range rounds {
							r, _, err := l.Hold(t.Context(), "k", each)
							require.NoError(t, err)
							_, err = r.Settle(t.Context(), 0)
							require.NoError(t, err)
						}
					})
				}
				wg.Wait()
				stop()
				busy.Wait()
				d, err := other.Peek(t.Context(), "k")
				require.NoError(t, err)
				assert.EqualValues(t, spent.Load(), d.Limit-d.Remaining)
				assert.Less(t, store.Stats().Calls, uint64(callers*rounds), "of twice as many calls")
				assert.Zero(t, store.Stats().Lost)
			})
		}
	}
}

// Cancellations of many reservations at once, of one process or of several, take no more
// than one command each, and none is lost.
func TestCancelTogether(t *testing.T) {
	const many = 100
	for name, w := range distances() {
		for client, create := range clients(t) {
			for _, processes := range []int{1, 10} {
				t.Run(fmt.Sprintf("%s/%s/%d", client, name, processes), func(t *testing.T) {
					t.Parallel()
					s := startServer(t)
					addr := startWire(t, s.addr(), w).addr()
					alg := hourly(1000)
					var stores []*redisstore.Store
					var fleet []ratelimit.Limiter
					for range processes {
						store := create(t, addr, redisstore.WithTimeout(patient))
						stores = append(stores, store)
						fleet = append(fleet, limiter(t, store, alg, ratelimit.WithFailurePolicy(ratelimit.FailClosed())))
					}
					calls := func() (sum uint64) {
						for _, store := range stores {
							assert.Zero(t, store.Stats().Lost)
							sum += store.Stats().Calls
						}
						return sum
					}
					require.True(t, fleet[0].AllowN("k", 1000))
					line := make([]*ratelimit.Reservation, many)
					for i := range line {
						var err error
						line[i], _, err = fleet[i%processes].Reserve(t.Context(), "k", 1)
						require.NoError(t, err)
						require.Positive(t, line[i].Delay())
					}
					stays, _, err := fleet[0].Reserve(t.Context(), "k", 1)
					require.NoError(t, err)
					before := calls()
					var wg sync.WaitGroup
					for _, r := range line {
						wg.Go(r.Cancel)
					}
					wg.Wait()
					assert.LessOrEqual(t, calls()-before, uint64(many))
					last, _, err := fleet[0].Reserve(t.Context(), "k", 999)
					require.NoError(t, err)
					assert.Less(t, last.Delay(), time.Hour, "all but one event of the next window")

					// When all have left, this window is as it was.
					last.Cancel()
					stays.Cancel()
					d, err := fleet[0].Peek(t.Context(), "k")
					require.NoError(t, err)
					assert.False(t, d.Allowed)
					assert.Less(t, d.RetryAfter, time.Hour)
				})
			}
		}
	}
}

// Waiters whose contexts end together leave no trace, after few commands.
func TestWaitersLeave(t *testing.T) {
	const many = 100
	for name, w := range distances() {
		for kind, alg := range algorithms(10) {
			t.Run(kind+"/"+name, func(t *testing.T) {
				t.Parallel()
				s := startServer(t)
				store := makers["rueidis"](t, startWire(t, s.addr(), w).addr(), redisstore.WithTimeout(patient))
				l := limiter(t, store, alg, ratelimit.WithFailurePolicy(ratelimit.FailClosed()))
				_, queue := alg.(ratelimit.LeakyBucket)
				require.True(t, l.Allow("k"))
				for !queue && l.Allow("k") {
				}
				key := s.do("KEYS", "*").([]any)[0]
				state := func() string {
					value := s.do("GET", key).(string)
					// its third word may be any instant that has passed
					if strings.HasPrefix(kind, "SlidingLog") || kind == "InFlight" || kind == "LeakyBucket" {
						third := len(tag(t, alg)) + 16
						value = value[:third] + value[third+8:]
					}
					return value
				}
				before := state()
				var line []*ratelimit.Reservation
				for range many {
					r, _, err := l.Reserve(t.Context(), "k", 1)
					require.NoError(t, err)
					if r == nil {
						break // a queue is full, or it is after 2116
					}
					require.Positive(t, r.Delay())
					line = append(line, r)
				}
				require.NotEqual(t, before, state())
				calls := store.Stats().Calls
				ctx, leave := context.WithCancel(t.Context())
				var wg sync.WaitGroup
				for _, r := range line {
					wg.Go(func() { assert.ErrorIs(t, r.Wait(ctx), context.Canceled) })
				}
				leave()
				wg.Wait()
				assert.Equal(t, before, state())
				assert.LessOrEqual(t, store.Stats().Calls-calls, uint64(len(line)))
			})
		}
	}
}

// Whatever is asked while turns are ahead is one call, also of several keys, and a key lasts as long as its turns. Only
// in windows of a calendar that are further ahead than the borders which a command has, a turn is two.
func TestTurnsInOneCall(t *testing.T) {
	withEach(t, func(t *testing.T, create maker) {
		s := startServer(t)
		store := create(t, s.addr(), redisstore.WithTimeout(patient), redisstore.WithDenialCache(0))
		for name, alg := range algorithms(10) {
			if name == "LeakyBucket" || name == "WarmingUp" { // has no room for a turn, or for few
				continue
			}
			l := limiter(t, store, alg, ratelimit.WithName(name), ratelimit.WithFailurePolicy(ratelimit.FailClosed()))
			calls := 1
			one := func(f func()) {
				t.Helper()
				before := store.Stats().Calls
				f()
				made := store.Stats().Calls - before
				switch {
				case calls == 0:
				case name == "CalendarWindow":
					require.LessOrEqual(t, made, uint64(2))
				default:
					require.EqualValues(t, calls, made, name)
				}
			}
			reserve := func(key string, n int) (r *ratelimit.Reservation) {
				t.Helper()
				one(func() {
					var err error
					r, _, err = l.Reserve(t.Context(), key, n)
					require.NoError(t, err)
					require.Positive(t, r.Delay(), name)
				})
				return r
			}
			all := func(key string) {
				t.Helper()
				one(func() {
					d, err := ratelimit.TakeAll(t.Context(), 1, ratelimit.For(l, key), ratelimit.For(l, key+" free"))
					require.NoError(t, err)
					require.False(t, d.Allowed, name)
				})
			}
			ask := func(key string) {
				s.do("FLUSHALL")
				require.True(t, l.AllowN(key, 10))
				if name == "SlidingLog/count denied" {
					require.True(t, l.Allow(key+" free"))
				}
				before := valueOf(s, key)
				first, second, third := reserve(key, 3), reserve(key, 10), reserve(key, 1)
				require.GreaterOrEqual(t, third.Delay(), second.Delay())
				if name != "SlidingLog/count denied" { // a denial is noted by the process
					one(func() { require.False(t, l.Allow(key), name) })
					all(key)
				}
				one(func() {
					d, err := l.Peek(t.Context(), key)
					require.NoError(t, err)
					require.Zero(t, d.Remaining, name)
				})
				keys := s.do("KEYS", "*:"+key).([]any)
				require.Greater(t, time.Duration(s.do("PTTL", keys[0]).(int64))*time.Millisecond, third.Delay(), name)
				one(second.Cancel)
				one(third.Cancel)
				one(first.Cancel)
				if name != "SlidingLog/count denied" && name != "InFlight" { // their third words may be any instants that have passed
					require.Equal(t, before, valueOf(s, key), name)
				}
			}
			calls = 0 // until all scripts are loaded
			ask("a")
			calls = 1
			ask("b")
		}
	})
}

// A long line is cancelled together in several commands, and none is lost.
func TestCancelLongLine(t *testing.T) {
	long(t)
	const many = 1000
	for kind, alg := range algorithms(100) {
		if kind == "LeakyBucket" || kind == "WarmingUp" {
			continue // a bounded queue; one turn in an hour
		}
		s := startServer(t)
		patiently := makers["rueidis"](t, s.addr(), redisstore.WithTimeout(10*patient), redisstore.WithPrefix("p"))
		l := limiter(t, patiently, alg, ratelimit.WithFailurePolicy(ratelimit.FailClosed()))
		require.True(t, l.AllowN("k", 100), kind)
		line := make([]*ratelimit.Reservation, 0, many)
		for range many {
			r, _, err := l.Reserve(t.Context(), "k", 1)
			require.NoError(t, err)
			if r == nil {
				break // after 2116
			}
			line = append(line, r)
		}
		before := patiently.Stats()
		var wg sync.WaitGroup
		for _, r := range line {
			wg.Go(r.Cancel)
		}
		wg.Wait()
		after := patiently.Stats()
		assert.Zero(t, after.Lost, kind)
		assert.Less(t, after.Calls-before.Calls, uint64(many/10), kind)
		r, _, err := l.Reserve(t.Context(), "k", 1)
		require.NoError(t, err)
		assert.LessOrEqual(t, r.Delay(), line[0].Delay()+time.Second, "%s: as if none had been reserved", kind)
	}
}

// A reservation comes no earlier than those that are ahead, also if a charge has begun the window that these lie
// in, or the time between refills, so that there is room before them.
func TestReserveBehindACharge(t *testing.T) {
	for name, alg := range map[string]ratelimit.Algorithm{
		"FixedWindow": ratelimit.FixedWindow{Limit: 3, Window: time.Hour, Start: ratelimit.StartOnFirstEvent},
		"TokenBucket": ratelimit.TokenBucket{Rate: ratelimit.PerHour(3), Refill: ratelimit.RefillInterval},
	} {
		t.Run(name, func(t *testing.T) {
			s := startServer(t)
			l := limiter(t, makers["rueidis"](t, s.addr(), redisstore.WithTimeout(patient)), alg, ratelimit.WithFailurePolicy(ratelimit.FailClosed()))
			held, _, err := l.Hold(t.Context(), "k", 3)
			require.NoError(t, err)
			require.NotNil(t, held)
			_, _, err = l.Reserve(t.Context(), "k", 1)
			require.NoError(t, err)
			_, err = held.Settle(t.Context(), 0)
			require.NoError(t, err)
			d, err := l.Charge(t.Context(), "k", 1)
			require.NoError(t, err)
			require.False(t, d.Allowed, "before the turn")
			second, _, err := l.Reserve(t.Context(), "k", 1)
			require.NoError(t, err)
			require.NotNil(t, second)
			assert.Greater(t, second.Delay(), 59*time.Minute)
			turns := s.do("GET", s.do("KEYS", "*").([]any)[0]).(string)[len(tag(t, alg))+16:] // of 32 bytes each
			at := func(turn int) uint64 { return binary.LittleEndian.Uint64([]byte(turns[32*turn+8:])) }
			assert.Equal(t, at(0), at(1), "the script has both at the same instant")
		})
	}
}

// Whatever is charged, taken and cancelled while turns are ahead, Redis has the state that the kernel has, also if
// turns come too early then, or are needed by later ones.
func TestTurns(t *testing.T) {
	conn := connectors["rueidis"](t, startServer(t).addr())
	window := ratelimit.FixedWindow{Limit: 3, Window: time.Minute, Start: ratelimit.StartOnFirstEvent}
	bucket := ratelimit.TokenBucket{Rate: ratelimit.PerMinute(7), Burst: 3}
	interval := ratelimit.TokenBucket{Rate: ratelimit.PerMinute(3), Refill: ratelimit.RefillInterval}
	queue := ratelimit.LeakyBucket{Rate: ratelimit.PerMinute(6), Capacity: 4}
	for _, alg := range []ratelimit.Algorithm{
		window, bucket, interval, queue,
		ratelimit.SlidingLog{Limit: 3, Window: time.Minute},
		ratelimit.SlidingWindow{Limit: 3, Window: time.Minute, Segments: 4},
		ratelimit.RollingWindow{Quota: 5, Window: time.Minute, Period: 10 * time.Second, PeriodLimit: 2},
		ratelimit.InFlight{Limit: 3, Timeout: time.Minute},
		ratelimit.WarmingUp{Rate: ratelimit.PerMinute(6), Warmup: time.Minute},
		ratelimit.All{window, bucket},
		ratelimit.All{interval, queue, ratelimit.SlidingLog{Limit: 4, Window: time.Minute}},
	} {
		for seed := range budget.Seeds(t, budget.Histories(6, 40)) {
			tr := newTraceOf(t, conn, prefixes(), alg, uncached)
			tr.drawer = newDrawer(seed, 3)
			_, err := tr.here.Peek(t.Context(), "k") // sets the request
			require.NoError(t, err)
			ask := func(req step.Request) step.Answer {
				tr.note("%+v", req)
				return tr.ask("k", req)
			}
			var held []openHold
			for id := range uint64(60) {
				n := 1 + tr.rng.IntN(2)
				switch tr.rng.IntN(9) {
				default:
					req := step.Request{Op: step.OpReserve, N: n, MaxWait: time.Hour, Hold: step.Handle{ID: 2*id + 2}}
					if tr.rng.IntN(4) == 0 {
						req.Hold = step.Handle{ID: 2*id + 1, For: time.Minute, Back: n == 1}
					}
					req.Yields = tr.rng.IntN(4) == 0 // as that of a caller who waits
					if ask(req).Held {
						held = append(held, openHold{"k", req.Hold.ID, n})
					}
				case 0:
					ask(step.Request{Op: step.OpCharge, N: n})
				case 1, 2:
					if len(held) > 0 {
						i := tr.rng.IntN(len(held))
						ask(step.Request{Op: step.OpSettle, Of: held[i].n, Hold: step.Handle{ID: held[i].id}})
						held = slices.Delete(held, i, i+1)
					}
				case 3:
					ask(step.Request{Op: step.OpTake, N: n})
				case 4, 5:
					tr.clk.Advance(time.Duration(tr.rng.Int64N(int64(20 * time.Second))).Truncate(time.Microsecond))
					tr.note("at %d", tr.clk.Now().UnixMicro())
				}
			}
		}
	}
}
