package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/redisstore/internal/script"
)

// A oneServer is a fakeServer that says so.
type oneServer struct{ *fakeServer }

func (oneServer) OneServer() bool { return true }

// jointly calls test with a server on which keys of a FixedWindow of 3 an hour can be decided on
// together. The server knows the script.
func jointly(t *testing.T, test func(t *testing.T, f *fakeServer, s *Store, of func(key string) ratelimit.Bound), opts ...Option) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 3, Window: time.Hour})
		f.Load(script.ForKeys(f.prog.Kinds, script.Plain).Text)
		s, l := f.storeThrough(t, oneServer{f}, opts...)
		test(t, f, s, func(key string) ratelimit.Bound { return ratelimit.For(l, key) })
	})
}

func remaining(t *testing.T, want int, of ...ratelimit.Bound) {
	t.Helper()
	for _, b := range of {
		d, err := b.Limiter().Peek(t.Context(), b.Key())
		require.NoError(t, err)
		assert.Equal(t, want, d.Remaining, b.Key())
	}
}

func TestJoint(t *testing.T) {
	jointly(t, func(t *testing.T, f *fakeServer, s *Store, of func(key string) ratelimit.Bound) {
		a, b, c := of("a"), of("b"), of("c")
		require.True(t, b.Limiter().Allow(b.Key()))
		d, err := ratelimit.TakeAll(t.Context(), 1, a, b, c)
		require.NoError(t, err)
		assert.Equal(t, ratelimit.Decision{Allowed: true, Limit: 3, Remaining: 1, Part: 1, ResetAfter: d.ResetAfter}, d)
		assert.Equal(t, []int{1, 3}, f.Batches)

		// A key that is given twice spends twice.
		d, err = ratelimit.TakeAll(t.Context(), 1, a, b, a)
		require.NoError(t, err)
		assert.Equal(t, ratelimit.Decision{Allowed: true, Limit: 3, ResetAfter: d.ResetAfter}, d)

		// Both refuse. What is not granted spends nothing.
		d, err = ratelimit.TakeAll(t.Context(), 1, c, b, a)
		require.NoError(t, err)
		assert.Equal(t, ratelimit.Decision{Limit: 3, Part: 1, RetryAfter: d.ResetAfter, ResetAfter: d.ResetAfter}, d)
		remaining(t, 2, c)

		// More than the limit, and nothing at all.
		d, err = ratelimit.TakeAll(t.Context(), 4, of("x"), of("y"))
		require.NoError(t, err)
		assert.Equal(t, ratelimit.Never, d.RetryAfter)
		d, err = ratelimit.TakeAll(t.Context(), 0, a, b)
		require.NoError(t, err)
		assert.True(t, d.Allowed)
		remaining(t, 0, a, b)
		assert.Zero(t, s.Stats().Failures)
	})
}

// A server that does not know the script gets it.
func TestJointUnknownScript(t *testing.T) {
	jointly(t, func(t *testing.T, f *fakeServer, _ *Store, of func(key string) ratelimit.Bound) {
		f.Flush()
		d, err := ratelimit.TakeAll(t.Context(), 1, of("a"), of("b"))
		require.NoError(t, err)
		assert.True(t, d.Allowed)
		assert.Equal(t, 2, f.Trips)
		assert.Equal(t, 1, f.Evals)
	})
}

// A HoldAll is settled in all keys.
func TestJointHold(t *testing.T) {
	jointly(t, func(t *testing.T, f *fakeServer, _ *Store, of func(key string) ratelimit.Bound) {
		a, b := of("a"), of("b")
		r, d, err := ratelimit.HoldAll(t.Context(), 2, a, b)
		require.NoError(t, err)
		assert.Equal(t, 1, d.Remaining)
		assert.Equal(t, []int{2}, f.Batches)
		_, err = r.Settle(t.Context(), 1)
		require.NoError(t, err)
		remaining(t, 2, a, b)
		r, _, err = ratelimit.HoldAll(t.Context(), 3, a, b)
		require.NoError(t, err)
		assert.Nil(t, r)
		remaining(t, 2, a, b)
	})
}

// The command after a HoldAll can use the holds, so it is not sent twice.
func TestJointHoldIsExpected(t *testing.T) {
	jointly(t, func(t *testing.T, f *fakeServer, _ *Store, of func(key string) ratelimit.Bound) {
		f.Load(script.ForKeys(f.prog.Kinds, script.Holding).Text)
		f.Load(f.prog.For(script.Holding).Text)
		a, b := of("a"), of("b")
		_, _, err := ratelimit.HoldAll(t.Context(), 2, a, b)
		require.NoError(t, err)
		require.Equal(t, 1, f.Trips)
		require.True(t, a.Limiter().Allow(a.Key()))
		assert.Equal(t, 1+1, f.Trips)
	})
}

// Limits that differ only in how much they grant have one state, whichever of them left it: once the
// store has met a limit, a decision on several keys is one command.
func TestJointPrioritiesTakeOneCommand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := []ratelimit.Algorithm{
			ratelimit.TokenBucket{Rate: ratelimit.PerHour(1), Burst: 80},
			ratelimit.TokenBucket{Rate: ratelimit.PerHour(1), Burst: 100},
		}
		f := newFakeServer(t, limits[1])
		s, _ := f.storeThrough(t, oneServer{f}, WithDenialCache(0))
		calls := 0
		l := ratelimit.Must(ratelimit.New(limits[1], ratelimit.WithStore(s), ratelimit.WithName("test priorities"),
			ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return limits[calls%2], nil })))
		take := func() bool {
			d, err := ratelimit.TakeAll(t.Context(), 1, ratelimit.For(l, "a"), ratelimit.For(l, "b"))
			require.NoError(t, err)
			calls++
			return d.Allowed
		}
		for range 3 { // in which the server learns the scripts, and the store both limits
			require.True(t, take())
		}
		f.Batches = nil
		granted := [2]int{}
		for range 240 {
			priority := calls % 2
			if take() {
				granted[priority]++
			}
		}
		assert.Equal(t, [2]int{38, 59}, granted)
		assert.Len(t, f.Batches, 240)
	})
}

// A denial is known to single requests from then on, and the other way round.
func TestJointDenialsAreCached(t *testing.T) {
	jointly(t, func(t *testing.T, f *fakeServer, s *Store, of func(key string) ratelimit.Bound) {
		a, b := of("a"), of("b")
		require.True(t, a.Limiter().AllowN(a.Key(), 2))
		d, err := ratelimit.TakeAll(t.Context(), 2, b, a)
		require.NoError(t, err)
		assert.False(t, d.Allowed)
		trips := f.Trips
		assert.False(t, a.Limiter().AllowN(a.Key(), 2))
		d, err = ratelimit.TakeAll(t.Context(), 2, b, a)
		require.NoError(t, err)
		assert.Equal(t, ratelimit.Decision{Limit: 3, Remaining: 1, Part: 1, RetryAfter: d.RetryAfter, ResetAfter: d.ResetAfter}, d)
		assert.Equal(t, trips, f.Trips)
		assert.Equal(t, uint64(2), s.Stats().Cached)
		assert.True(t, b.Limiter().AllowN(b.Key(), 3), "which refused nothing")
		assert.False(t, b.Limiter().Allow(b.Key()))
		trips = f.Trips
		d, err = ratelimit.TakeAll(t.Context(), 1, a, b)
		require.NoError(t, err)
		assert.False(t, d.Allowed)
		assert.Equal(t, 1, d.Part)
		assert.Equal(t, trips, f.Trips)
		for range 2 { // a key that never grants as many events decides, whatever is known of others
			d, err = ratelimit.TakeAll(t.Context(), 2, of("c"), b, of("c"))
			require.NoError(t, err)
			assert.Equal(t, ratelimit.Never, d.RetryAfter)
			assert.Equal(t, 0, d.Part)
		}
		assert.True(t, a.Limiter().Allow(a.Key()))
		time.Sleep(2 * time.Hour)
		d, err = ratelimit.TakeAll(t.Context(), 1, a, b)
		require.NoError(t, err)
		assert.True(t, d.Allowed)
	})
}

// If the command fails, or is not answered or not sent, the policy decides on each key; and no
// later than for one key.
func TestJointFailures(t *testing.T) {
	for name, c := range map[string]struct {
		fault func(f *fakeServer, s *Store)
		want  func(s Stats) uint64
		takes time.Duration
	}{
		"no answer": {
			func(f *fakeServer, _ *Store) { f.Hangs = true },
			func(s Stats) uint64 { return s.Timeouts },
			50 * time.Millisecond,
		},
		"error": {func(f *fakeServer, _ *Store) { f.Fail = errors.New("OOM command not allowed") },
			func(s Stats) uint64 { return s.ErrorReplies }, 0},
		"lost connection": {func(f *fakeServer, _ *Store) { f.Fail = errors.New("EOF") }, func(s Stats) uint64 { return s.OtherErrors }, 0},
		"breaker":         {func(_ *fakeServer, s *Store) { trip(s) }, func(s Stats) uint64 { return s.BreakerOpen }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			jointly(t, func(t *testing.T, f *fakeServer, s *Store, of func(key string) ratelimit.Bound) {
				c.fault(f, s)
				began := time.Now()
				d, err := ratelimit.TakeAll(t.Context(), 1, of("a"), of("b"))
				require.ErrorContains(t, err, "bounds[0]: ")
				assert.False(t, d.Allowed)
				assert.True(t, d.Degraded)
				assert.Equal(t, c.takes, time.Since(began))
				assert.Equal(t, uint64(2), c.want(s.Stats()))
				assert.Equal(t, uint64(2), s.Stats().Failures)
				f.Set(func() { f.Hangs, f.Fail = false, nil })
				settle()
			})
		})
	}
}

// The end of the caller's context ends the wait, and is no failure of the store.
func TestJointContext(t *testing.T) {
	jointly(t, func(t *testing.T, f *fakeServer, s *Store, of func(key string) ratelimit.Bound) {
		f.Hangs = true
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, cancel)
		began := time.Now()
		d, err := ratelimit.TakeAll(ctx, 1, of("a"), of("b"))
		require.ErrorIs(t, err, context.Canceled)
		assert.Equal(t, ratelimit.Decision{}, d)
		assert.Equal(t, time.Millisecond, time.Since(began))
		assert.Zero(t, s.Stats().Failures)
		settle()
	})
}

// Keys that are not known to share a server are held one after the other. Until a refusal has been
// made good, another process is denied what it would have been granted with one call. Whatever the
// order, nothing is granted beyond the limit.
func TestJointInOneCallOrInOrder(t *testing.T) {
	for _, one := range []bool{true, false} {
		t.Run(fmt.Sprintf("one=%v", one), func(t *testing.T) {
			jointly(t, func(t *testing.T, f *fakeServer, _ *Store, of func(key string) ratelimit.Bound) {
				var conn Conn = f
				if one {
					conn = oneServer{f}
				}
				process := func() func(key string) ratelimit.Bound {
					s, err := New(conn, WithDenialCache(0))
					require.NoError(t, err)
					l, err := ratelimit.New(f.prog.Limit.Known.(ratelimit.Algorithm), ratelimit.WithStore(s),
						ratelimit.WithName("test"), ratelimit.WithFailurePolicy(ratelimit.FailClosed()))
					require.NoError(t, err)
					return func(key string) ratelimit.Bound { return ratelimit.For(l, key) }
				}
				here, there := process(), process()
				require.True(t, of("spent").Limiter().AllowN(of("spent").Key(), 3))
				require.True(t, of("k").Limiter().AllowN(of("k").Key(), 1))
				_, _, err := ratelimit.HoldAll(t.Context(), 1, of("k")) // so that the server knows that script
				require.NoError(t, err)
				f.Delay = 10 * time.Millisecond // so the holds, one after the other, arrive after 5 ms and 15 ms

				var denied sync.WaitGroup
				denied.Go(func() {
					d, err := ratelimit.TakeAll(t.Context(), 3, here("a"), here("spent"))
					assert.NoError(t, err)
					assert.False(t, d.Allowed)
				})
				time.Sleep(7 * time.Millisecond)
				assert.Equal(t, one, there("a").Limiter().AllowN(there("a").Key(), 3), "while the first key is held")
				denied.Wait()
				assert.Equal(t, !one, there("a").Limiter().AllowN(there("a").Key(), 3), "it was given back")

				var granted atomic.Int64
				var callers sync.WaitGroup
				for i := range 20 {
					process := process()
					bounds := []ratelimit.Bound{process("x"), process("y")}
					if i%2 > 0 {
						slices.Reverse(bounds)
					}
					callers.Go(func() {
						d, err := ratelimit.TakeAll(t.Context(), 1, bounds...)
						assert.NoError(t, err)
						if d.Allowed {
							granted.Add(1)
						}
					})
				}
				callers.Wait()
				if one {
					assert.Equal(t, int64(3), granted.Load())
				}
				remaining(t, 3-int(granted.Load()), here("x"), here("y"))
			})
		})
	}
}

// If the server refuses to decide on the keys together, or the script cannot use a state, they
// are taken in order.
func TestJointInOrder(t *testing.T) {
	for name, fault := range map[string]func(f *fakeServer){
		"another slot":  func(f *fakeServer) { f.Fail = errors.New("CROSSSLOT Keys in request don't hash to the same slot") },
		"a slot moves":  func(f *fakeServer) { f.Fail = errors.New("TRYAGAIN Multiple keys request during rehashing of slot") },
		"script fails":  func(f *fakeServer) { f.Fail = errors.New("ERR user_script:9: data string too short") },
		"damaged state": func(f *fakeServer) { f.Damage() },
	} {
		t.Run(name, func(t *testing.T) {
			jointly(t, func(t *testing.T, f *fakeServer, s *Store, of func(key string) ratelimit.Bound) {
				a, b := of("a"), of("b")
				require.True(t, a.Limiter().Allow(a.Key()))
				fault(f)
				f.Failures, f.Batches = 1, nil
				d, err := ratelimit.TakeAll(t.Context(), 1, b, a)
				if name == "damaged state" {
					require.ErrorIs(t, err, ratelimit.ErrState, "that is reported once")
					d, err = ratelimit.TakeAll(t.Context(), 1, b, a)
				}
				require.NoError(t, err)
				assert.True(t, d.Allowed)
				if name != "damaged state" {
					assert.Equal(t, []int{1, 1, 1}, f.Batches, "one held, one taken, and the first settled")
					assert.Zero(t, s.Stats().Failures)
				}
			})
		})
	}
}

// Only keys that are surely on one server are decided on together.
func TestGroups(t *testing.T) {
	f := newFakeServer(t, ratelimit.FixedWindow{Limit: 3, Window: time.Hour})
	group := func(conn Conn, key string, opts ...Option) any {
		s, err := New(conn, opts...)
		require.NoError(t, err)
		g := namers(t, s, "api")[0].Group(key)
		if g, ok := g.(sharing); ok {
			return "tag " + g.tag
		}
		return g
	}
	assert.Equal(t, "tag ", group(oneServer{f}, "a"))
	assert.Equal(t, "tag ", group(oneServer{f}, "{a}", WithKeyTags()))
	assert.Nil(t, group(f, "a"))
	assert.Nil(t, group(f, "{a}"))
	assert.Equal(t, "tag a", group(f, "{a}b", WithKeyTags()))
	assert.Equal(t, "tag p", group(f, "b", WithPrefix("{p}")))
	one, err := New(oneServer{f})
	require.NoError(t, err)
	other, err := New(oneServer{f})
	require.NoError(t, err)
	limiters := namers(t, one, "api")
	assert.Equal(t, limiters[0].Group("a"), limiters[1].Group("b"))
	assert.NotEqual(t, limiters[0].Group("a"), namers(t, other, "api")[0].Group("a"))
}

// More keys than a script may have are taken by several. If one of these is denied, what the others
// have taken is given back, at once.
func TestManyJointly(t *testing.T) {
	jointly(t, func(t *testing.T, f *fakeServer, s *Store, of func(key string) ratelimit.Bound) {
		const most = 1024
		var bounds []ratelimit.Bound
		for i := range 2*most + 2 {
			bounds = append(bounds, of(fmt.Sprint(i)))
		}
		take := func(want bool) {
			d, err := ratelimit.TakeAll(t.Context(), 1, bounds...)
			require.NoError(t, err)
			assert.Equal(t, want, d.Allowed)
		}
		take(true)
		assert.Equal(t, []int{most, most, 2}, f.Batches[:3])
		assert.Len(t, f.Batches, 3+2*most, "the first were held, and are settled")

		require.True(t, bounds[2*most].Limiter().AllowN(bounds[2*most].Key(), 2))
		f.Delay = time.Millisecond
		begin := time.Now()
		take(false)
		assert.Less(t, time.Since(begin), 100*time.Millisecond, "and not 2 s")
		remaining(t, 2, bounds[0], bounds[2*most-1], bounds[2*most+1])
	})
}

// Whatever the reply to a script is, it is an error or a decision.
func TestNonsenseTogether(t *testing.T) {
	zero := string(make([]byte, 17))
	for _, answer := range []string{"", "x", zero[:8], zero, zero + "\x01", zero + "\xff\xff\xff\xff", zero + "\x00\x00\x00\x00",
		zero + string(make([]byte, 8)), zero + "\x01\x00\x00\x00x\x00\x00\x00\x00",
		zero[:8] + "\x07\x00\x00\x00\x00", zero[:8] + "\x07\x03\x00\x00\x00",
		zero[:8] + "\x08\x00\x00\x00\x00", zero[:8] + "\x08\x03\x00\x00\x00", zero[:8] + "\x08\x01\x00\x00\x00x"} {
		s, err := New(nonsenseServer{nonsense{text: answer}})
		require.NoError(t, err)
		l, err := ratelimit.New(ratelimit.FixedWindow{Limit: 3, Window: time.Hour}, ratelimit.WithStore(s),
			ratelimit.WithName("test"), ratelimit.WithFailureLog(nil))
		require.NoError(t, err)
		_, err = ratelimit.TakeAll(t.Context(), 1, ratelimit.For(l, "a"), ratelimit.For(l, "b"))
		assert.Error(t, err, "%q", answer)
	}
}

type nonsenseServer struct{ nonsense }

func (nonsenseServer) OneServer() bool { return true }
