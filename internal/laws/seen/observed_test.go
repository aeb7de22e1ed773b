package seen_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
)

// TestObserverSeesWhatRefused: of a Wait or Reserve that is denied, an observer is told the
// Decision that Reserve returns, which has the part of an All that refused.
func TestObserverSeesWhatRefused(t *testing.T) {
	const within = time.Second // how long Wait may wait
	quota := ratelimit.FixedWindow{Limit: 5, Window: time.Minute}
	slow := ratelimit.All{quota, ratelimit.TokenBucket{Rate: ratelimit.PerHour(1), Burst: 2}}
	queue := ratelimit.All{quota, ratelimit.LeakyBucket{Rate: ratelimit.PerMinute(1)}}
	flights := ratelimit.All{quota, ratelimit.InFlight{Limit: 1, Timeout: time.Hour}}
	for name, tt := range map[string]struct {
		alg       ratelimit.Algorithm
		before, n int
		part      int
		retry     time.Duration // the RetryAfter of Wait
		err       error
	}{
		"late":       {slow, 2, 1, 1, time.Hour - within, context.DeadlineExceeded},
		"late alone": {quota, 5, 1, 0, time.Minute - within, context.DeadlineExceeded},
		"never":      {slow, 0, 3, 1, ratelimit.Never, ratelimit.ErrNever},
		"full queue": {queue, 1, 1, 1, time.Minute, ratelimit.ErrQueueFull},
		"flights":    {flights, 0, 2, 1, ratelimit.Never, ratelimit.ErrNever},
		"blocked":    {ratelimit.All{quota, ratelimit.Blocked{}}, 0, 1, 1, ratelimit.Never, ratelimit.ErrNever},
		"third": {ratelimit.All{quota, ratelimit.Unlimited{},
			ratelimit.SlidingLog{Limit: 1, Window: time.Hour}}, 1, 1, 2, time.Hour - within, context.DeadlineExceeded},
		"one in time": {ratelimit.All{ratelimit.SlidingLog{Limit: 1, Window: time.Hour}, queue[1]}, 1, 1, 0, time.Hour - within, context.DeadlineExceeded},
	} {
		for storeName, store := range map[string]func() ratelimit.Store{
			"memory": func() ratelimit.Store { return new(ratelimit.MemoryStore) },
			"bytes":  func() ratelimit.Store { return fakes.NewMapDB().Store() },
		} {
			t.Run(name+"/"+storeName, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w, ctx := &fakes.Witness{}, t.Context()
					l := ratelimit.Must(ratelimit.New(tt.alg, ratelimit.WithObserver(w.Observe), ratelimit.WithStore(store()), ratelimit.WithName("test")))
					require.True(t, l.AllowN("k", tt.before))
					refused := func(maxWait time.Duration) ratelimit.Decision {
						r, d, err := l.Reserve(ctx, "k", tt.n, ratelimit.Within(maxWait))
						require.NoError(t, err)
						if r != nil {
							r.Cancel()
						}
						w.Answered()
						return d
					}
					check := func(call ratelimit.Call, d ratelimit.Decision, err error) {
						assert.Equal(t, ratelimit.Observation{Limiter: "test", Key: "k", Call: call, N: tt.n,
							Outcome: ratelimit.Denied, Decision: d, Err: err}, w.One(t))
					}

					d := refused(within)
					require.False(t, d.Allowed)
					assert.Equal(t, tt.part, d.Part)
					assert.Equal(t, tt.retry, d.RetryAfter)
					short, cancel := context.WithTimeout(ctx, within)
					defer cancel()
					err := l.WaitN(short, "k", tt.n)
					require.ErrorIs(t, err, tt.err)
					check(ratelimit.CallWait, d, err)
					_, _, err = l.Hold(short, "k", tt.n, ratelimit.Waiting())
					require.ErrorIs(t, err, tt.err)
					check(ratelimit.CallWait, d, err)
					if d = refused(ratelimit.Never); !d.Allowed {
						_, again, err := l.Reserve(ctx, "k", tt.n)
						require.NoError(t, err)
						assert.Equal(t, d, again)
						check(ratelimit.CallReserve, d, nil)
					}
				})
			})
		}
	}
}

// TestObserverSeesHowLongAWaitTook: a caller that stood in line has waited, however it was granted.
// A caller that is granted at once has not waited, however long the decision took.
func TestObserverSeesHowLongAWaitTook(t *testing.T) {
	const looksUp = 5 * time.Millisecond
	bucket := ratelimit.TokenBucket{Rate: ratelimit.PerMinute(10)}
	flights := ratelimit.InFlight{Limit: 10, Timeout: time.Hour}
	for name, tt := range map[string]struct {
		alg  ratelimit.Algorithm
		used int
		want ratelimit.Outcome
	}{
		"bucket, at once":     {bucket, 9, ratelimit.Granted},
		"bucket, its turn":    {bucket, 10, ratelimit.Delayed},
		"bucket, settled":     {ratelimit.TokenBucket{Rate: ratelimit.PerHour(1), Burst: 10}, 10, ratelimit.Delayed},
		"in flight, at once":  {flights, 9, ratelimit.Granted},
		"in flight, released": {flights, 10, ratelimit.Delayed},
	} {
		for kept, opts := range map[string]func() []ratelimit.Option{"memory": fakes.InMemory, "bytes": fakes.InBytes} {
			for _, holds := range []bool{false, true} {
				synctest.Test(t, func(t *testing.T) {
					w := &fakes.Witness{}
					l := ratelimit.Must(ratelimit.New(tt.alg,
						append(opts(), ratelimit.WithObserver(w.Observe),
							ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) {
								time.Sleep(looksUp)
								return tt.alg, nil
							}))...))
					r := fakes.Held(t, l, "key", tt.used)
					w.Answered()
					if tt.want == ratelimit.Delayed && tt.alg != bucket {
						time.AfterFunc(4*time.Second, r.Cancel)
					}
					begin, err := time.Now(), error(nil)
					if holds {
						_, _, err = l.Hold(t.Context(), "key", 1, ratelimit.Waiting())
					} else {
						err = l.Wait(t.Context(), "key")
					}
					require.NoError(t, err)
					var waited time.Duration
					if tt.want == ratelimit.Delayed {
						waited = time.Since(begin)
						require.Greater(t, waited, time.Second)
					}
					seen := w.Answered() // perhaps also of a Cancel
					i := slices.IndexFunc(seen, func(o ratelimit.Observation) bool { return o.Call == ratelimit.CallWait })
					require.GreaterOrEqual(t, i, 0)
					assert.Equal(t, tt.want, seen[i].Outcome, "%s, %s", name, kept)
					assert.Equal(t, waited, seen[i].Waited, "%s, %s", name, kept)
				})
			}
		}
	}
}

// TestObserverSeesWhatIsAhead: a Reserve that would overtake a Wait for events in flight is denied
// by the part that denied the Wait.
func TestObserverSeesWhatIsAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &fakes.Witness{}
		l := ratelimit.Must(ratelimit.New(ratelimit.All{
			ratelimit.FixedWindow{Limit: 5, Window: time.Minute}, ratelimit.InFlight{Limit: 1, Timeout: time.Hour},
		}, ratelimit.WithObserver(w.Observe)))
		require.True(t, l.Allow("k"))
		waiting, leave := context.WithCancel(t.Context())
		go func() { assert.ErrorIs(t, l.Wait(waiting, "k"), context.Canceled) }()
		synctest.Wait()
		w.Answered()
		r, _, err := l.Reserve(t.Context(), "k", 1)
		require.NoError(t, err)
		require.Nil(t, r)
		o := w.One(t)
		assert.Equal(t, ratelimit.Denied, o.Outcome)
		assert.Equal(t, 1, o.Decision.Part)
		assert.Equal(t, time.Hour, o.Decision.RetryAfter)
		leave()
		synctest.Wait()
		assert.Equal(t, ratelimit.Abandoned, w.One(t).Outcome)
	})
}
