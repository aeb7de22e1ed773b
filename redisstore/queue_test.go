package redisstore

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

// Calls on a key that arrive while its command is in progress share the next command, and
// get the answers that they would have got one after the other.
func TestCoalescing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 30, Window: time.Hour})
		f.Delay = 10 * time.Millisecond
		s, l := f.store(t)
		var mu sync.Mutex
		remaining := map[int]int{}
		allowed := 0
		for i := range 50 {
			if i == 1 {
				synctest.Wait() // the first is in progress
			}
			go func() {
				d, err := l.Take(t.Context(), "k", 1)
				assert.NoError(t, err)
				mu.Lock()
				defer mu.Unlock()
				if d.Allowed {
					allowed++
					remaining[d.Remaining]++
				}
			}()
		}
		time.Sleep(25 * time.Millisecond) // less than three calls take
		synctest.Wait()
		assert.Equal(t, []int{1, 49}, f.Batches)
		assert.EqualValues(t, 48, s.Stats().Coalesced)
		assert.EqualValues(t, 2, s.Stats().Calls)
		assert.Equal(t, 30, allowed)
		assert.Len(t, remaining, 30, "each call got its own Remaining")
		_, l = f.store(t)
		assert.False(t, l.Allow("k"))
	})
}

// Callers that call again as soon as they are answered share each command, instead of every second.
func TestCallingAgain(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // so that they run before the sender does
	synctest.Test(t, func(t *testing.T) {
		const callers, calls = 40, 20
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: callers * calls, Window: time.Hour})
		f.Delay = 10 * time.Millisecond
		_, l := f.store(t)
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() {
				for range calls {
					assert.True(t, l.Allow("k"))
				}
			})
		}
		wg.Wait()
		assert.Less(t, f.Calls(), calls*3/2)
	})
}

// Calls on different keys do not wait for each other's replies: a call waits for a tick at most, in
// case that others share its batch.
func TestOtherKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 30, Window: time.Hour})
		f.Delay = 10 * time.Millisecond
		s, l := f.store(t)
		begin := time.Now()
		var wg sync.WaitGroup
		for i := range 500 {
			wg.Go(func() { l.Allow(fmt.Sprint(i)) })
		}
		wg.Wait()
		assert.LessOrEqual(t, time.Since(begin), f.Delay+s.timeout/ticksPerTimeout)
		assert.Equal(t, 500, f.Calls())
		assert.Less(t, len(f.Together), 100, "they share round trips")
		requireIdle(t, s)
	})
}

// Takes of different sizes, peeks and reservations share a command, too.
func TestCoalescingMixed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(10)})
		f.Delay = 10 * time.Millisecond
		_, l := f.store(t)
		ctx := t.Context()
		next := func(do func()) { // they queue up in this order
			go do()
			synctest.Wait()
		}
		var got [6]string
		note := func(i int, d ratelimit.Decision, err error) {
			got[i] = fmt.Sprint(d.Allowed, d.Remaining, d.RetryAfter, err)
		}
		next(func() { d, err := l.Take(ctx, "k", 4); note(0, d, err) })
		next(func() { d, err := l.Take(ctx, "k", 7); note(1, d, err) })
		next(func() { d, err := l.Take(ctx, "k", 0); note(2, d, err) })
		next(func() { d, err := l.Take(ctx, "k", 5); note(3, d, err) })
		next(func() {
			r, _, err := l.Reserve(ctx, "k", 2)
			got[4] = fmt.Sprint(r.Delay().Round(time.Second), err)
		})
		next(func() { d, err := l.Peek(ctx, "k"); note(5, d, err) })
		time.Sleep(30 * time.Millisecond)
		synctest.Wait()
		assert.Equal(t, []int{1, 5}, f.Batches)
		assert.Equal(t, "true 6 0s <nil>", got[0])
		assert.Contains(t, got[1], "false 6 5m59.9")
		assert.Equal(t, "true 6 0s <nil>", got[2])
		assert.Equal(t, "true 1 0s <nil>", got[3])
		assert.Equal(t, "6m0s <nil>", got[4])
		assert.Contains(t, got[5], "false 0 11m59.9")
	})
}

// A call whose caller leaves while it is queued is not sent, and does not delay the others.
func TestGivingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 30, Window: time.Hour})
		f.Delay = 10 * time.Millisecond
		_, l := f.store(t)
		go l.Allow("k")
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		defer cancel()
		var mu sync.Mutex
		allowed := 0
		for i := range 10 {
			ctx := ctx
			if i%2 == 0 {
				ctx = t.Context()
			}
			go func() {
				d, err := l.Take(ctx, "k", 1)
				mu.Lock()
				defer mu.Unlock()
				if err == nil && d.Allowed {
					allowed++
				} else {
					assert.ErrorIs(t, err, context.DeadlineExceeded)
				}
			}()
		}
		time.Sleep(30 * time.Millisecond)
		synctest.Wait()
		assert.Equal(t, 5, allowed)
		assert.Equal(t, []int{1, 5}, f.Batches)
	})
}

// No call waits for longer than the timeout, even if it is queued, and nothing is left
// behind.
func TestTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 30, Window: time.Hour})
		s, l := f.store(t, WithTimeout(50*time.Millisecond))
		require.True(t, l.Allow("k"))
		f.Set(func() { f.Hangs = true })
		var wg sync.WaitGroup
		for i := range 60 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				asked := time.Now()
				d, err := l.Take(t.Context(), "k", 1)
				assert.ErrorIs(t, err, ErrTimeout)
				assert.True(t, d.Degraded && !d.Allowed)
				assert.LessOrEqual(t, time.Since(asked), 50*time.Millisecond)
				assert.GreaterOrEqual(t, time.Since(asked), 45*time.Millisecond, "at most a tick early")
			})
		}
		wg.Wait()
		assert.EqualValues(t, 60, s.Stats().Timeouts)
		settle()
		requireIdle(t, s)
	})
}

// requireTicks checks how long a call has taken, up to two ticks: goroutines that wake at one instant run in
// any order, so a tick may count before the call has begun, or only after another one has.
func requireTicks(t *testing.T, want, got time.Duration) {
	t.Helper()
	require.InDelta(t, want, got, float64(10*time.Millisecond))
}

// While goroutines wait for a processor, there is four times as much time.
func TestBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 30, Window: time.Hour})
		s, l := f.store(t, WithTimeout(50*time.Millisecond))
		s.backlog = func() bool { return true }
		f.Delay = 190 * time.Millisecond
		require.True(t, l.Allow("k"))
		synctest.Wait()
		assert.Zero(t, incidents(s))
		settle() // so that ticks begin with the next call
		f.Delay = 210 * time.Millisecond
		begin := time.Now()
		_, err := l.Take(t.Context(), "k", 1)
		assert.ErrorIs(t, err, ErrTimeout)
		requireTicks(t, 200*time.Millisecond, time.Since(begin))
		synctest.Wait()
		assert.Equal(t, 1, incidents(s))
		assert.ErrorIs(t, s.Stats().Outages[""].Cause, ErrTimeout)
	})
}

// While goroutines wait for a processor and the server answers other commands, there is sixteen
// times as much time: it is this process that is behind.
func TestBehind(t *testing.T) {
	for name, tt := range map[string]struct {
		wrap    func(twoServers) Conn
		backlog bool
		want    time.Duration
	}{
		"answers":                 {func(two twoServers) Conn { return unknownServer{two} }, true, 800 * time.Millisecond},
		"answers, and no backlog": {func(two twoServers) Conn { return unknownServer{two} }, false, 50 * time.Millisecond},
		"another one answers":     {func(two twoServers) Conn { return two }, true, 200 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeServer(t, ratelimit.FixedWindow{Limit: 10_000, Window: time.Hour})
				f.Delay = time.Millisecond
				s, err := New(tt.wrap(twoServers{f}), WithTimeout(50*time.Millisecond))
				require.NoError(t, err)
				s.backlog = func() bool { return tt.backlog }
				l, err := ratelimit.New(f.prog.Limit.Known.(ratelimit.Algorithm), ratelimit.WithStore(s), ratelimit.WithName("test"))
				require.NoError(t, err)
				done := make(chan struct{})
				go func() {
					defer close(done)
					for begin := time.Now(); time.Since(begin) < time.Second; {
						_, err := l.Take(t.Context(), "well", 1)
						assert.NoError(t, err)
					}
				}()
				begin := time.Now()
				_, err = l.Take(t.Context(), "ah", 1)
				require.ErrorIs(t, err, ErrTimeout)
				requireTicks(t, tt.want, time.Since(begin))
				<-done
				settle()
				requireIdle(t, s)
			})
		})
	}
}

// A tick that is held up, such as by a thread that does not run, counts once, however many calls
// arrive meanwhile.
func TestTickHeldUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 10_000, Window: time.Hour})
		f.Delay = 400 * time.Millisecond
		s, l := f.store(t, WithTimeout(50*time.Millisecond))
		s.backlog = func() bool {
			time.Sleep(45 * time.Millisecond)
			return false
		}
		var wg sync.WaitGroup
		for i := range 400 {
			time.Sleep(time.Millisecond)
			wg.Go(func() { assert.True(t, l.Allow(fmt.Sprint(i))) })
		}
		wg.Wait()
		settle()
		requireIdle(t, s)
	})
}

// requireIdle checks that no command is in progress, and that no queue and no sender is left.
func requireIdle(t *testing.T, s *Store) {
	t.Helper()
	synctest.Wait()
	for _, o := range s.allOutboxes() {
		require.Empty(t, o.queues)
		require.Empty(t, o.batches)
		require.False(t, o.gathering)
		require.Zero(t, o.senders)
		require.Empty(t, o.ready)
	}
}

// Calls queued behind a command without an answer are sent when that is abandoned.
func TestGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 30, Window: time.Hour})
		s, l := f.store(t, WithTimeout(50*time.Millisecond))
		f.Hangs, f.Stuck = true, make(chan struct{})
		go l.Allow("k")
		synctest.Wait()
		f.Set(func() { f.Hangs = false })
		time.Sleep(10 * time.Millisecond) // a tick; all calls that arrive in the next one have the same timeout
		var wg sync.WaitGroup
		for range 10 {
			time.Sleep(2 * time.Millisecond)
			wg.Go(func() { assert.True(t, l.Allow("k")) })
		}
		wg.Wait()
		synctest.Wait()
		assert.Equal(t, []int{10}, f.Batches, "together")
		before := incidents(s)
		close(f.Stuck) // the client returns, too
		settle()
		assert.Equal(t, before, incidents(s), "the breaker has been told before")
		assert.True(t, l.Allow("k"))
		requireIdle(t, s)
	})
}

// A caller can leave at any time. Its command continues, and the breaker gets its outcome.
func TestCallerLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 30, Window: time.Hour})
		f.Delay = 10 * time.Millisecond
		s, l := f.store(t)
		leave := func() {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Millisecond, cancel)
			begin := time.Now()
			_, err := l.Take(ctx, "k", 1)
			require.ErrorIs(t, err, context.Canceled)
			require.NotErrorIs(t, err, ErrTimeout)
			assert.Equal(t, time.Millisecond, time.Since(begin))
			settle()
		}
		leave()
		assert.Zero(t, incidents(s))
		f.Hangs = true
		leave()
		assert.Equal(t, 1, incidents(s))
		assert.Error(t, s.Stats().Outages[""].Cause, "the caller did not wait for it")
		assert.Zero(t, s.Stats().Timeouts)

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		trips := f.Trips
		_, err := l.Take(ctx, "k", 1)
		require.ErrorIs(t, err, context.Canceled)
		assert.Equal(t, trips, f.Trips, "not sent at all")
		requireIdle(t, s)
	})
}

// Callers that leave early do not count as failures of a server that answers in time.
func TestImpatientCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 10_000, Window: time.Hour})
		f.Delay = 10 * time.Millisecond
		s, l := f.store(t)
		var left, answered atomic.Int64
		var wg sync.WaitGroup
		for i := range 1000 {
			wg.Go(func() {
				ctx := t.Context()
				if i%3 > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, time.Duration(i)*20*time.Microsecond)
					defer cancel()
				}
				switch _, err := l.Take(ctx, fmt.Sprint("k", i%7), 1); {
				case err == nil:
					answered.Add(1)
				case errors.Is(err, context.DeadlineExceeded) && i%3 > 0:
					left.Add(1)
				default:
					t.Error(err)
				}
			})
		}
		wg.Wait()
		settle()
		assert.Greater(t, left.Load(), int64(300))
		assert.Greater(t, answered.Load(), int64(300))
		assert.Zero(t, incidents(s))
		requireIdle(t, s)
	})
}

// A breaker gets one failure for each command, and not one for each of its calls.
func TestBreakerCountsCommands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 30, Window: time.Hour})
		f.Delay, f.Fail, f.Failures = 10*time.Millisecond, errors.New("EOF"), 2
		s, l := f.store(t)
		var failed atomic.Int64
		var wg sync.WaitGroup
		for i := range 100 {
			if i == 1 {
				synctest.Wait() // the first is in progress
			}
			wg.Go(func() {
				if _, err := l.Take(t.Context(), "k", 1); err != nil {
					failed.Add(1)
				}
			})
		}
		wg.Wait()
		assert.EqualValues(t, 100, failed.Load())
		assert.Equal(t, 2, incidents(s))
	})
}

// A breaker gets one failure of all commands that were in progress when a server stalled or
// a connection was lost, no matter for how many keys, and one of each that was sent after.
func TestBreakerCountsIncidents(t *testing.T) {
	for name, fault := range map[string]func(f *fakeServer){
		"stall": func(f *fakeServer) { f.Hangs = true },
		"reset": func(f *fakeServer) { f.Delay, f.Fail = 10*time.Millisecond, errors.New("EOF") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeServer(t, ratelimit.FixedWindow{Limit: 30, Window: time.Hour})
				fault(f)
				s, l := f.store(t)
				for incident := range 3 {
					var wg sync.WaitGroup
					for i := range 64 {
						wg.Go(func() {
							time.Sleep(time.Duration(i) * 10 * time.Microsecond)
							_, err := l.Take(t.Context(), fmt.Sprint(i), 1)
							assert.Error(t, err)
						})
					}
					wg.Wait()
					synctest.Wait()
					assert.Greater(t, len(f.Together), incident+1, "there were several batches")
					assert.Equal(t, incident+1, incidents(s))
					settle() // the callers have left, and the latest batch has not failed yet
				}
			})
		})
	}
}

// Time in which this process did not run does not count as a failure of the server.
func TestOutcome(t *testing.T) {
	s, err := New(&fakeServer{}, WithTimeout(50*time.Millisecond))
	require.NoError(t, err)
	lost := errors.New("i/o timeout")
	for _, tt := range []struct {
		err  error
		took time.Duration
		age  int
		want error
	}{
		{nil, time.Hour, 0, nil},
		{lost, 0, 0, lost},
		{lost, 10 * time.Millisecond, 0, lost}, // half of it was not counted
		{lost, 11 * time.Millisecond, 0, context.Canceled},
		{lost, 50 * time.Millisecond, 10 * tickWeight, lost},
		{lost, 80 * time.Millisecond, 7 * tickWeight, lost},
		{lost, 81 * time.Millisecond, 7 * tickWeight, context.Canceled},
		{lost, 3 * time.Second, 1, context.Canceled}, // the process was stopped
	} {
		assert.Equal(t, tt.want, s.outcome(tt.err, tt.took, tt.age), "%v after %v, weight %d", tt.err, tt.took, tt.age)
	}
}

// A batch has failed if no reply shows that the server works.
func TestFailureOfABatch(t *testing.T) {
	lost, full := errors.New("EOF"), errors.New("ERR max number of clients reached")
	for name, tt := range map[string]struct {
		errs []error
		want error
	}{
		"answered":         {[]error{nil}, nil},
		"lost":             {[]error{lost, lost}, lost},
		"lost halfway":     {[]error{nil, lost}, nil},
		"refused":          {[]error{full}, full},
		"a value":          {[]error{errors.New("WRONGTYPE Operation against a key"), lost}, nil},
		"memory":           {[]error{errors.New("OOM command not allowed")}, nil},
		"an argument":      {[]error{errors.New("ERR value is not an integer")}, nil},
		"the first counts": {[]error{full, lost}, full},
	} {
		b := &batch{}
		for _, err := range tt.errs {
			b.groups = append(b.groups, &group{err: err})
		}
		assert.Equal(t, tt.want, b.failure(), name)
	}
}

// twoServers are a server that answers, and one that hangs and has the keys that end with h.
type twoServers struct{ *fakeServer }

func (two twoServers) Server(key string) (name string, known bool) {
	return key[len(key)-1:], true
}

func (two twoServers) Do(ctx context.Context, commands []Command) []Reply {
	name, _ := two.Server(commands[0].Words[commands[0].Key])
	if name == "h" {
		<-ctx.Done()
		return errorsOf(commands, ctx.Err())
	}
	return two.fakeServer.Do(ctx, commands)
}

// An unknownServer is one of which the client does not say which keys it has.
type unknownServer struct{ Conn }

func (unknownServer) Server(string) (name string, known bool) { return "", false }

// More than maxGroup calls take several commands.
func TestMaxGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 2*maxGroup + 7, Window: time.Hour})
		f.Delay = 10 * time.Millisecond
		_, l := f.store(t)
		go l.Allow("k")
		synctest.Wait()
		var wg sync.WaitGroup
		for range 2*maxGroup + 6 {
			wg.Go(func() { assert.True(t, l.Allow("k")) })
		}
		wg.Wait()
		assert.Equal(t, []int{1, maxGroup, maxGroup, 6}, f.Batches)
		assert.False(t, l.Allow("k"))
	})
}

// The calls on a key whose state cannot be read share the command that replaces it. The first
// of them reports that.
func TestRepair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 300, Window: time.Hour})
		f.Delay = 4 * time.Millisecond
		s, l := f.store(t, WithTimeout(50*time.Millisecond))
		var wg sync.WaitGroup
		var granted atomic.Int64
		ask := func() {
			if l.Allow("k") {
				granted.Add(1)
			}
		}
		wg.Go(ask)
		time.Sleep(3 * time.Millisecond) // the answer is in transit
		f.Set(func() { f.Damage() })
		for range 199 {
			wg.Go(ask)
		}
		wg.Wait()
		assert.Equal(t, 3, f.Trips, "the first; the others; the state after them")
		assert.Equal(t, []int{1}, f.Batches)
		d, err := l.Peek(t.Context(), "k")
		require.NoError(t, err)
		assert.Equal(t, 300-199, d.Remaining)
		assert.EqualValues(t, 1+198, granted.Load())
		assert.EqualValues(t, 1, s.Stats().Failures)
		assert.EqualValues(t, 1, s.Stats().Unreadable)

		// If it cannot be replaced, each call fails within the timeout.
		f.Damage()
		f.Hanging = replace.SHA
		for range 100 {
			wg.Go(func() {
				asked := time.Now()
				_, err := l.Take(t.Context(), "k", 1)
				assert.ErrorIs(t, err, ErrTimeout)
				assert.LessOrEqual(t, time.Since(asked), 50*time.Millisecond)
			})
		}
		wg.Wait()
		settle()
		requireIdle(t, s)
	})
}

// If the script fails, the calls get its error. If it failed because of the state, the state
// is replaced.
func TestScriptFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 3, Window: time.Hour})
		s, l := f.store(t)
		require.True(t, l.Allow("k"))
		f.Fail, f.Failures, f.Trips = errors.New("OOM command not allowed, on @user_script:9."), 1, 0
		_, err := l.Take(t.Context(), "k", 1)
		require.ErrorIs(t, err, f.Fail)
		assert.Equal(t, 1, f.Trips, "that is not about the state")

		f.Fail = errors.New("ERR user_script:9: data string too short")
		for _, damaged := range []bool{false, true} {
			if damaged {
				f.Damage()
			}
			f.Failures = 1
			_, err := l.Take(t.Context(), "k", 1)
			if !damaged {
				require.ErrorIs(t, err, f.Fail)
				continue
			}
			require.ErrorIs(t, err, ratelimit.ErrState)
			d, err := l.Peek(t.Context(), "k")
			require.NoError(t, err)
			assert.Equal(t, 2, d.Remaining)
		}
		assert.EqualValues(t, 1, s.Stats().Unreadable)
		settle()
		requireIdle(t, s)
	})
}

// A server that does not know a script gets its full text, once.
func TestUnknownScript(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 30, Window: time.Hour})
		_, l := f.store(t)
		for range 5 {
			require.True(t, l.Allow("k"))
		}
		assert.Zero(t, f.Evals)
		f.Flush()
		require.True(t, l.Allow("k"))
		require.True(t, l.Allow("k"))
		assert.Equal(t, 1, f.Evals)
		d, err := l.Peek(t.Context(), "k")
		require.NoError(t, err)
		assert.Equal(t, 23, d.Remaining, "no call was executed twice")
	})
}

// A malformed reply is an error.
func TestNonsense(t *testing.T) {
	for _, answer := range []string{"", "x", "12345678", "12345678\x00", "12345678\x00123456789012", string(make([]byte, 17)) + "odd"} {
		s, err := New(nonsense{text: answer})
		require.NoError(t, err)
		l, err := ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(7)}, ratelimit.WithStore(s),
			ratelimit.WithName("test"), ratelimit.WithFailurePolicy(ratelimit.FailClosed()))
		require.NoError(t, err)
		d, err := l.Take(t.Context(), "k", 1)
		assert.Error(t, err, "%q", answer)
		assert.True(t, d.Degraded, "%q", answer)
	}
	// So is a reply that denies what the arithmetic grants.
	s, err := New(nonsense{text: string(make([]byte, 17))})
	require.NoError(t, err)
	l, err := ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(7)}, ratelimit.WithStore(s), ratelimit.WithName("test"))
	require.NoError(t, err)
	_, err = l.Take(t.Context(), "k", 1)
	assert.ErrorContains(t, err, "defect")
}

type nonsense struct {
	plainConn
	text string
}

func (n nonsense) Do(_ context.Context, commands []Command) []Reply {
	replies := make([]Reply, len(commands))
	for i := range replies {
		replies[i].Text = n.text
	}
	return replies
}

// A command that the client stopped redirecting is sent again, because it was not executed,
// but only a few times.
func TestMoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 30, Window: time.Hour})
		_, l := f.store(t)
		f.Fail = errors.New("MOVED 7 127.0.0.1:7001")
		f.Failures = 2
		require.True(t, l.Allow("k"))
		assert.Equal(t, 3, f.Trips)
		f.Failures = 100
		_, err := l.Take(t.Context(), "k", 1)
		require.ErrorIs(t, err, f.Fail)
		assert.Equal(t, 3+1+maxResends, f.Trips)
		settle()
	})
}

// Events that cannot be given back are counted: those of reservations whose cancellation is
// not answered in time, or is refused, and those of leases.
func TestLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 1000, Window: time.Hour})
		s, l := f.store(t, WithTimeout(50*time.Millisecond), WithLease(100, time.Second))
		require.True(t, l.AllowN("k", 1000))
		var line []*ratelimit.Reservation
		for range 3 {
			r, _, err := l.Reserve(t.Context(), "k", 2)
			require.NoError(t, err)
			line = append(line, r)
		}
		line[0].Cancel()
		assert.Zero(t, s.Stats().Lost)
		f.Set(func() { f.Hangs = true })
		begin := time.Now()
		line[1].Cancel()
		assert.Equal(t, 50*time.Millisecond, time.Since(begin))
		assert.EqualValues(t, 2, s.Stats().Lost)
		line[2].Cancel()
		assert.EqualValues(t, 4, s.Stats().Lost, "after a failure, the others are still asked for")
		f.Set(func() { f.Hangs = false })

		for s.Stats().Leased == 0 {
			require.True(t, l.Allow("other"))
		}
		f.Set(func() { f.Fail = errors.New("LOADING") })
		require.Error(t, s.Close(t.Context()))
		assert.Greater(t, s.Stats().Lost, uint64(2))
		settle()
	})
}

// The memory of calls is used again, however they are made. How often is up to the pool, which
// drops some when garbage is collected, and with the race detector at random.
func TestCallsAreUsedAgain(t *testing.T) {
	const calls = 200
	for name, call := range map[string]func(l ratelimit.Limiter) error{
		"Take": func(l ratelimit.Limiter) error {
			_, err := l.Take(context.Background(), "k", 1)
			return err
		},
		"Hold": func(l ratelimit.Limiter) error {
			r, _, err := l.Hold(context.Background(), "k", 1)
			if err == nil {
				_, err = r.Settle(context.Background(), 0)
			}
			return err
		},
		"Reset": func(l ratelimit.Limiter) error { return l.Reset(context.Background(), "k") },
		"TakeEach": func(l ratelimit.Limiter) error {
			_, err := l.TakeEach(context.Background(), []string{"k", "l"}, 1, nil)
			return err
		},
		"TakeAll": func(l ratelimit.Limiter) error {
			_, err := ratelimit.TakeAll(context.Background(), 1, ratelimit.For(l, "{k}"), ratelimit.For(l, "{k}l"))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeServer(t, ratelimit.FixedWindow{Limit: 10 * calls, Window: time.Hour})
				s, l := f.store(t, WithKeyTags())
				made := 0
				s.calls.New = func() any {
					made++
					return nil // newCall makes one
				}
				for range calls {
					require.NoError(t, call(l))
				}
				assert.Less(t, made, calls)
				assert.Positive(t, made)
				settle()
			})
		})
	}
}
