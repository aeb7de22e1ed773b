package seen_test

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/internal/limit"
)

// TestObserverSeesEachCall makes each call once so that it is granted, and once so that it is
// denied, and compares what the observer is told with what the caller is.
func TestObserverSeesEachCall(t *testing.T) {
	ctx := t.Context()
	for name, tt := range map[string]struct {
		call ratelimit.Call
		do   func(l ratelimit.Limiter) (ratelimit.Decision, error)
		bare bool // whether the call returns no Decision
	}{
		"Allow": {ratelimit.CallAllow, func(l ratelimit.Limiter) (ratelimit.Decision, error) {
			return ratelimit.Decision{Allowed: l.AllowN("k", 3)}, nil
		}, true},
		"Take": {ratelimit.CallTake, func(l ratelimit.Limiter) (ratelimit.Decision, error) { return l.Take(ctx, "k", 3) }, false},
		"TakeEach": {ratelimit.CallTake, func(l ratelimit.Limiter) (ratelimit.Decision, error) {
			ds, err := l.TakeEach(ctx, []string{"k"}, 3, nil)
			return ds[0], err
		}, false},
		"Bound": {ratelimit.CallTake, func(l ratelimit.Limiter) (ratelimit.Decision, error) {
			return ratelimit.For(l, "k").Limiter().Take(ctx, ratelimit.For(l, "k").Key(), 3)
		}, false},
		"TakeAll": {ratelimit.CallTakeAll, func(l ratelimit.Limiter) (ratelimit.Decision, error) {
			return ratelimit.TakeAll(ctx, 3, ratelimit.For(l, "k"))
		}, false},
		"HoldAll": {ratelimit.CallTakeAll, func(l ratelimit.Limiter) (ratelimit.Decision, error) {
			_, d, err := ratelimit.HoldAll(ctx, 3, ratelimit.For(l, "k"))
			return d, err
		}, false},
		"Hold": {ratelimit.CallHold, func(l ratelimit.Limiter) (ratelimit.Decision, error) { _, d, err := l.Hold(ctx, "k", 3); return d, err }, false},
		"Within": {ratelimit.CallReserve, func(l ratelimit.Limiter) (ratelimit.Decision, error) {
			_, d, err := l.Reserve(ctx, "k", 3, ratelimit.Within(0))
			return d, err
		}, false},
	} {
		for storeName, store := range map[string]func() ratelimit.Store{
			"memory": func() ratelimit.Store { return new(ratelimit.MemoryStore) },
			"bytes":  func() ratelimit.Store { return fakes.NewMapDB().Store() },
			"each":   func() ratelimit.Store { return new(fakes.EachStore) },
		} {
			t.Run(name+"/"+storeName, func(t *testing.T) {
				l, w, clk := fakes.Observed(t, ratelimit.FixedWindow{Limit: 4, Window: time.Minute}, ratelimit.WithStore(store()))
				clk.Add(time.Second)
				for i, outcome := range []ratelimit.Outcome{ratelimit.Granted, ratelimit.Denied} {
					d, err := tt.do(l)
					require.NoError(t, err)
					want := ratelimit.Observation{Limiter: "api", Key: "k", Call: tt.call, N: 3, Granted: 3 - 3*i, Outcome: outcome, Decision: d}
					o := w.One(t)
					if tt.bare {
						assert.Equal(t, d.Allowed, o.Decision.Allowed)
						want.Decision = o.Decision
					}
					assert.Equal(t, want, o)
				}
			})
		}
	}
}

func TestObserverSeesAccounting(t *testing.T) {
	ctx := t.Context()
	l, w, _ := fakes.Observed(t, ratelimit.FixedWindow{Limit: 10, Window: time.Minute})
	r, _, err := l.Hold(ctx, "k", 4)
	require.NoError(t, err)
	w.Answered()
	d, err := r.Settle(ctx, 1)
	require.NoError(t, err)
	assert.Equal(t, ratelimit.Observation{Limiter: "api", Key: "k", Call: ratelimit.CallSettle, N: 1, Granted: 4,
		Outcome: ratelimit.Counted, Decision: d}, w.One(t))
	_, err = r.Settle(ctx, 1)
	require.ErrorIs(t, err, ratelimit.ErrEnded)
	assert.Empty(t, w.Answered(), "it was settled before")

	d, err = l.Charge(ctx, "k", 3)
	require.NoError(t, err)
	assert.Equal(t, ratelimit.Observation{Limiter: "api", Key: "k", Call: ratelimit.CallCharge, N: 3, Outcome: ratelimit.Counted, Decision: d}, w.One(t))

	l, w, _ = fakes.Observed(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)})
	_, err = l.Charge(ctx, "k", math.MaxInt32) // paid after 2116
	require.ErrorIs(t, err, ratelimit.ErrDebt)
	o := w.One(t)
	assert.Equal(t, ratelimit.Failed, o.Outcome)
	assert.Equal(t, err, o.Err)
}

// TestObserverSeesTakeUpTo: it is granted some of the events, or none.
func TestObserverSeesTakeUpTo(t *testing.T) {
	for _, store := range []ratelimit.Store{new(ratelimit.MemoryStore), fakes.NewMapDB().Store()} {
		l, w, _ := fakes.Observed(t, ratelimit.FixedWindow{Limit: 4, Window: time.Minute}, ratelimit.WithStore(store))
		for _, granted := range []int{3, 1, 0} {
			got, d, err := l.TakeUpTo(t.Context(), "k", 3)
			require.NoError(t, err)
			assert.Equal(t, granted, got)
			want := ratelimit.Observation{Limiter: "api", Key: "k", Call: ratelimit.CallTakeUpTo, N: 3, Granted: granted, Decision: d}
			if granted == 0 {
				want.Outcome = ratelimit.Denied
			}
			assert.Equal(t, want, w.One(t))
		}
	}
}

// TestObserverSeesNoQuestions: Peek and Reset decide nothing, and nothing is decided if the
// arguments cannot be used.
func TestObserverSeesNoQuestions(t *testing.T) {
	l, w, _ := fakes.Observed(t, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)})
	over, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := l.Peek(t.Context(), "k")
	require.NoError(t, err)
	require.NoError(t, l.Reset(t.Context(), "k"))
	_, err = l.Take(over, "k", 1)
	require.ErrorIs(t, err, context.Canceled)
	_, err = l.Take(t.Context(), "k", -1)
	require.ErrorIs(t, err, ratelimit.ErrInvalid)
	require.Error(t, l.Wait(over, "k"))
	_, _, err = l.Reserve(over, "k", 1)
	require.Error(t, err)
	_, _, err = l.Reserve(t.Context(), "k", 1, ratelimit.Within(-1))
	require.ErrorIs(t, err, ratelimit.ErrInvalid)
	_, err = ratelimit.TakeAll(over, 1, ratelimit.For(l, "k"))
	require.Error(t, err)
	assert.Empty(t, w.Answered())
}

func TestObserverSeesWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &fakes.Witness{}
		l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)}, ratelimit.WithObserver(w.Observe)))
		ctx := t.Context()
		require.NoError(t, l.Wait(ctx, "k"))
		assert.Equal(t, ratelimit.Observation{Key: "k", Call: ratelimit.CallWait, N: 1, Granted: 1,
			Decision: ratelimit.Decision{Allowed: true, Limit: 1, ResetAfter: time.Second}}, w.One(t),
			"the decision is that of Take")
		require.NoError(t, l.Wait(ctx, "k"))
		assert.Equal(t, ratelimit.Observation{Key: "k", Call: ratelimit.CallWait, N: 1, Granted: 1,
			Outcome: ratelimit.Delayed, Decision: ratelimit.Decision{Allowed: true}, Waited: time.Second}, w.One(t))

		short, cancel := context.WithTimeout(ctx, time.Millisecond)
		defer cancel()
		err := l.Wait(short, "k")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		late := ratelimit.Decision{Limit: 1, RetryAfter: 999 * time.Millisecond, ResetAfter: time.Second}
		assert.Equal(t, ratelimit.Observation{Key: "k", Call: ratelimit.CallWait, N: 1, Outcome: ratelimit.Denied,
			Decision: late, Err: err}, w.One(t), "the turn would come too late")

		leaving, leave := context.WithCancel(ctx)
		time.AfterFunc(300*time.Millisecond, leave)
		require.ErrorIs(t, l.Wait(leaving, "k"), context.Canceled)
		assert.Equal(t, ratelimit.Observation{Key: "k", Call: ratelimit.CallWait, N: 1, Outcome: ratelimit.Abandoned,
			Waited: 300 * time.Millisecond, Err: context.Canceled}, w.One(t))

		r, d, err := l.Reserve(ctx, "k", 1)
		require.NoError(t, err)
		assert.Equal(t, ratelimit.Observation{Key: "k", Call: ratelimit.CallReserve, N: 1, Granted: 1,
			Outcome: ratelimit.Delayed, Decision: d, Waited: 700 * time.Millisecond}, w.One(t))
		r.Cancel()
		r.Cancel()
		assert.Equal(t, ratelimit.Observation{Key: "k", Call: ratelimit.CallSettle, Granted: 1, Outcome: ratelimit.Counted}, w.One(t))
		for name, hold := range map[string]func() (*ratelimit.Reservation, ratelimit.Decision, error){
			"Hold": func() (*ratelimit.Reservation, ratelimit.Decision, error) { return l.Hold(ctx, "held", 1) },
			"HoldAll": func() (*ratelimit.Reservation, ratelimit.Decision, error) {
				return ratelimit.HoldAll(ctx, 1, ratelimit.For(l, "held"))
			},
		} {
			r, _, err := hold()
			require.NoError(t, err)
			w.Answered()
			r.Cancel()
			assert.Equal(t, ratelimit.Observation{Key: "held", Call: ratelimit.CallSettle, Granted: 1, Outcome: ratelimit.Counted}, w.One(t), name)
		}
		_, d, err = l.Reserve(ctx, "k", 5)
		require.NoError(t, err)
		assert.Equal(t, ratelimit.Never, d.RetryAfter)
		assert.Equal(t, ratelimit.Denied, w.One(t).Outcome)
	})
}

// TestObserverSeesWaitsForRelease: observers see calls for events in flight as well. Releases that
// the limiter makes itself are not calls.
func TestObserverSeesWaitsForRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &fakes.Witness{}
		l := ratelimit.Must(ratelimit.New(ratelimit.InFlight{Limit: 1, Timeout: time.Minute}, ratelimit.WithObserver(w.Observe)))
		ctx := t.Context()
		first, _, err := l.Hold(ctx, "k", 1, ratelimit.Waiting())
		require.NoError(t, err)
		assert.Equal(t, ratelimit.Granted, w.One(t).Outcome)
		time.AfterFunc(time.Second, func() { _ = first.Release(ctx) })
		_, _, err = l.Hold(ctx, "k", 1, ratelimit.Waiting())
		require.NoError(t, err)
		synctest.Wait() // until the observers of the Release are told, too
		seen := w.Answered()
		require.Len(t, seen, 2)
		assert.ElementsMatch(t, []ratelimit.Call{ratelimit.CallSettle, ratelimit.CallWait}, []ratelimit.Call{seen[0].Call, seen[1].Call})
		for _, o := range seen {
			if o.Call == ratelimit.CallWait {
				assert.Equal(t, ratelimit.Delayed, o.Outcome)
				assert.Equal(t, time.Second, o.Waited)
			}
		}
	})
}

// TestObserverSeesWhoRefused: of several keys, only those that refused are denied.
func TestObserverSeesWhoRefused(t *testing.T) {
	w, clk := &fakes.Witness{}, clock.NewMock()
	limiter := func(name string, limit int) ratelimit.Limiter {
		return ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: limit, Window: time.Minute},
			ratelimit.WithName(name), ratelimit.WithClock(clk), ratelimit.WithObserver(w.Observe)))
	}
	users, orgs := limiter("users", 1), limiter("orgs", 5)
	bounds := []ratelimit.Bound{ratelimit.For(users, "u"), ratelimit.For(orgs, "o")}
	_, err := ratelimit.TakeAll(t.Context(), 1, bounds...)
	require.NoError(t, err)
	for i, o := range w.Answered() {
		assert.Equal(t, ratelimit.Granted, o.Outcome, i)
		assert.Equal(t, 1, o.Granted)
	}
	d, err := ratelimit.TakeAll(t.Context(), 1, bounds...)
	require.NoError(t, err)
	assert.False(t, d.Allowed)
	seen := w.Answered()
	require.Len(t, seen, 2)
	assert.Equal(t, "users", seen[0].Limiter)
	assert.Equal(t, ratelimit.Denied, seen[0].Outcome)
	assert.Equal(t, time.Minute, seen[0].Decision.RetryAfter)
	assert.Equal(t, "orgs", seen[1].Limiter)
	assert.Equal(t, ratelimit.Withheld, seen[1].Outcome)
	assert.Equal(t, 4, seen[1].Decision.Remaining)
	assert.Zero(t, seen[1].Granted)

	// In other stores, the keys are asked in turn. The observers of keys that have granted see the
	// refusal of another key, and see neither the hold nor its settlement.
	for name, l := range map[string]ratelimit.Limiter{"users": users, "slow": ratelimit.Must(ratelimit.New(
		ratelimit.FixedWindow{Limit: 5, Window: time.Minute}, ratelimit.WithName("slow"), ratelimit.WithClock(clk),
		ratelimit.WithObserver(w.Observe), ratelimit.WithStore(fakes.NewMapDB().Store())))} {
		_, err := ratelimit.TakeAll(t.Context(), 1, ratelimit.For(l, "u"))
		require.NoError(t, err)
		assert.Equal(t, map[string]ratelimit.Outcome{"users": ratelimit.Denied, "slow": ratelimit.Granted}[name], w.One(t).Outcome)
		_, err = ratelimit.TakeAll(t.Context(), 1, ratelimit.For(l, "u"), ratelimit.For(users, "u"))
		require.NoError(t, err)
		for _, o := range w.Answered() {
			assert.Equal(t, ratelimit.CallTakeAll, o.Call)
			assert.Equal(t, map[string]ratelimit.Outcome{"users": ratelimit.Denied, "slow": ratelimit.Withheld}[o.Limiter], o.Outcome)
			assert.Zero(t, o.Granted)
		}
	}

	// A part of an All is told as well.
	l, w, _ := fakes.Observed(t, ratelimit.All{ratelimit.FixedWindow{Limit: 5, Window: time.Minute}, ratelimit.FixedWindow{Limit: 1, Window: time.Hour}})
	l.Allow("k")
	l.Allow("k")
	seen = w.Answered()
	require.Len(t, seen, 2)
	assert.Equal(t, ratelimit.Denied, seen[1].Outcome)
	assert.Equal(t, 1, seen[1].Decision.Part)
}

// TestObserverSeesFailures: observers see failures with every policy, even of calls that return no
// error.
func TestObserverSeesFailures(t *testing.T) {
	down := errors.New("down")
	ctx := t.Context()
	db := fakes.NewMapDB()
	db.Err, db.Swap = down, down
	broken := db.Store()
	for name, policy := range map[string]ratelimit.FailurePolicy{
		"open": ratelimit.FailOpen(), "closed": ratelimit.FailClosed(),
		"fallback": ratelimit.Fallback(ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 100}))),
	} {
		allowed := name != "closed"
		for call, do := range map[ratelimit.Call]func(l ratelimit.Limiter){
			ratelimit.CallAllow:   func(l ratelimit.Limiter) { l.Allow("k") },
			ratelimit.CallTake:    func(l ratelimit.Limiter) { _, _ = l.Take(ctx, "k", 1) },
			ratelimit.CallHold:    func(l ratelimit.Limiter) { _, _, _ = l.Hold(ctx, "k", 1) },
			ratelimit.CallWait:    func(l ratelimit.Limiter) { _ = l.Wait(ctx, "k") },
			ratelimit.CallReserve: func(l ratelimit.Limiter) { _, _, _ = l.Reserve(ctx, "k", 1) },
		} {
			t.Run(name+"/"+call.String(), func(t *testing.T) {
				l, w, _ := fakes.Observed(t, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)},
					ratelimit.WithStore(broken), ratelimit.WithFailurePolicy(policy), ratelimit.WithFailureLog(nil))
				do(l)
				o := w.One(t)
				assert.Equal(t, call, o.Call)
				assert.Equal(t, ratelimit.Failed, o.Outcome)
				require.ErrorIs(t, o.Err, down)
				assert.Equal(t, allowed, o.Decision.Allowed)
				assert.True(t, o.Decision.Degraded)
				assert.Equal(t, allowed, o.Granted == 1, "Granted: %d", o.Granted)
			})
		}
	}
}

// A foreign store has the states of another one, which limiters then do not know.
type foreign struct{ ratelimit.Store }

type foreignStates struct{ limit.States }

func (s foreign) Open(name string, t *limit.Limit, timeout time.Duration) (limit.States, error) {
	states, err := s.Store.Open(name, t, timeout)
	return foreignStates{states}, err
}

func TestObserverSeesAFullStore(t *testing.T) {
	full := func() ratelimit.Store {
		return &ratelimit.MemoryStore{MaxKeys: 1, RefuseNew: true}
	}
	for _, alg := range []ratelimit.Algorithm{
		ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)}, ratelimit.InFlight{Limit: 1, Timeout: time.Second},
	} {
		for _, store := range []ratelimit.Store{full(), foreign{full()}} {
			l, w, _ := fakes.Observed(t, alg, ratelimit.WithStore(store))
			require.True(t, l.Allow("first"))
			w.Answered()
			ctx := t.Context()
			for call, do := range map[ratelimit.Call]func(){
				ratelimit.CallAllow:    func() { l.Allow("k") },
				ratelimit.CallTake:     func() { _, _ = l.TakeEach(ctx, []string{"k"}, 1, nil) },
				ratelimit.CallHold:     func() { _, _, _ = l.Hold(ctx, "k", 1) },
				ratelimit.CallWait:     func() { _ = l.Wait(ctx, "k") },
				ratelimit.CallReserve:  func() { _, _, _ = l.Reserve(ctx, "k", 1) },
				ratelimit.CallCharge:   func() { _, _ = l.Charge(ctx, "k", 1) },
				ratelimit.CallTakeAll:  func() { _, _ = ratelimit.TakeAll(ctx, 1, ratelimit.For(l, "k")) },
				ratelimit.CallTakeUpTo: func() { _, _, _ = l.TakeUpTo(ctx, "k", 2) },
			} {
				do()
				o := w.One(t)
				assert.Equal(t, call, o.Call)
				assert.Equal(t, ratelimit.Failed, o.Outcome, "%T: %v", store, call)
				assert.Equal(t, ratelimit.Decision{Limit: 1, RetryAfter: time.Second}, o.Decision, call)
			}
		}
	}
}

func TestObserversInOrder(t *testing.T) {
	var order []int
	note := func(i int) ratelimit.Option {
		return ratelimit.WithObserver(func(context.Context, ratelimit.Observation) { order = append(order, i) })
	}
	l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)}, note(1), note(2)))
	l.Allow("k")
	assert.Equal(t, []int{1, 2}, order)
	_, err := ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)}, ratelimit.WithObserver(nil))
	require.ErrorIs(t, err, ratelimit.ErrInvalid)
	assert.ErrorContains(t, err, "WithObserver")
}

// TestObserverKeepsTheAlgorithm: what other packages ask of a limiter is the same with an
// observer, and in a wrapper.
func TestObserverKeepsTheAlgorithm(t *testing.T) {
	alg := ratelimit.TokenBucket{Rate: ratelimit.PerSecond(7), Burst: 7}
	l, _, clk := fakes.Observed(t, alg)
	for _, l := range []ratelimit.Limiter{l, fakes.Wrapped{Limiter: l}, fakes.Wrapped{Limiter: fakes.Wrapped{Limiter: l}}} {
		assert.Equal(t, alg, l.Describe().Algorithm)
		assert.Equal(t, clk, l.Describe().Clock)
		assert.Equal(t, "api", l.Describe().Name)
		assert.NotNil(t, l.Describe().Store)
		of, err := l.Describe().AlgorithmOf(t.Context(), "k")
		require.NoError(t, err)
		assert.Equal(t, alg, of)
	}
}

// TestObserverAllocatesNothing checks that each call allocates as much as without an observer.
func TestObserverAllocatesNothing(t *testing.T) {
	budget.Alone(t) // and then pools forget some of what they hold
	var count atomic.Int64
	ctx := t.Context()
	bucket := ratelimit.TokenBucket{Rate: ratelimit.PerHour(1), Burst: 1 << 20}
	bare := ratelimit.Must(ratelimit.New(bucket))
	observed := ratelimit.Must(ratelimit.New(bucket, ratelimit.WithObserver(
		func(context.Context, ratelimit.Observation) { count.Add(1) })))
	var out []ratelimit.Decision
	for name, call := range map[string]func(ratelimit.Limiter){
		"Allow":    func(l ratelimit.Limiter) { l.Allow("k") },
		"Take":     func(l ratelimit.Limiter) { _, _ = l.Take(ctx, "k", 1) },
		"TakeEach": func(l ratelimit.Limiter) { out, _ = l.TakeEach(ctx, []string{"k", "j"}, 1, out[:0]) },
		"TakeAll": func(l ratelimit.Limiter) {
			_, _ = ratelimit.TakeAll(ctx, 1, ratelimit.For(l, "k"), ratelimit.For(l, "j"))
		},
		"TakeUpTo": func(l ratelimit.Limiter) { _, _, _ = l.TakeUpTo(ctx, "k", 2) },
		"Charge":   func(l ratelimit.Limiter) { _, _ = l.Charge(ctx, "k", 1) },
		"Wait":     func(l ratelimit.Limiter) { _ = l.Wait(ctx, "k") },
		"Reserve":  func(l ratelimit.Limiter) { _, _, _ = l.Reserve(ctx, "k", 1) },
		"Cancel": func(l ratelimit.Limiter) {
			r, _, _ := l.Reserve(ctx, "k", 1)
			r.Cancel()
		},
		"Reserve within": func(l ratelimit.Limiter) { _, _, _ = l.Reserve(ctx, "k", 1, ratelimit.Within(time.Second)) },
		"Settle": func(l ratelimit.Limiter) {
			h, _, _ := l.Hold(ctx, "k", 1)
			_, _ = h.Settle(ctx, 0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			call(bare)
			want := testing.AllocsPerRun(100, func() { call(bare) })
			before := count.Load()
			call(observed)
			assert.Equal(t, want, testing.AllocsPerRun(100, func() { call(observed) }))
			assert.GreaterOrEqual(t, count.Load(), before+102)
		})
	}
}

func TestNamesOfObservations(t *testing.T) {
	assert.Equal(t, "take_all", ratelimit.CallTakeAll.String())
	assert.Equal(t, "take_up_to", ratelimit.CallTakeUpTo.String())
	assert.Equal(t, "Call(200)", ratelimit.Call(200).String())
	assert.Equal(t, "withheld", ratelimit.Withheld.String())
	assert.Equal(t, "Outcome(200)", ratelimit.Outcome(200).String())
}
