package ratelimit

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// begin lets a waiter wait for n events of "key", and returns it once its goroutine is blocked.
func begin(ctx context.Context, l Limiter, n int) *waiter {
	w := &waiter{l: l.(*limiter), ctx: ctx, until: ctx, key: "key", n: n}
	go w.wait()
	synctest.Wait()
	return w
}

// A waiter prints how far it has come, from its begin to each of its ends.
func TestWaiter_States(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := Must(New(TokenBucket{Rate: PerSecond(1), Burst: 1}))
		fresh := &waiter{l: l.(*limiter), ctx: t.Context(), until: t.Context(), key: "key", n: 1}
		assert.Equal(t, `wait for 1 of key ""… (3 bytes): begun`, fresh.String())
		first := begin(t.Context(), l, 1)
		assert.Equal(t, `wait for 1 of key ""… (3 bytes): served`, first.String(), "at once")
		never := begin(t.Context(), l, 2)
		assert.Equal(t, `wait for 2 of key ""… (3 bytes): refused`, never.String(), "above the limit")

		second := begin(t.Context(), l, 1)
		assert.Equal(t,
			`wait for 1 of key ""… (3 bytes): waiting, place 1 of 1, resting until 00:00:01`,
			second.String())
		leaves, leave := context.WithCancel(t.Context())
		third := begin(leaves, l, 1)
		assert.Equal(t,
			`wait for 1 of key ""… (3 bytes): waiting, place 2 of 2, resting until it is woken`,
			third.String())
		hasted, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		late := begin(hasted, l, 1)
		assert.Equal(t, `wait for 1 of key ""… (3 bytes): refused`, late.String(), "its turn comes too late")

		leave()
		synctest.Wait()
		assert.Equal(t, `wait for 1 of key ""… (3 bytes): left`, third.String())
		time.Sleep(time.Second)
		synctest.Wait()
		assert.Equal(t, `wait for 1 of key ""… (3 bytes): served`, second.String(), "when its turn comes")
	})
}

// hangingDB is a Database that does not answer before it is closed.
type hangingDB struct {
	Database
	closed chan struct{}
}

func (db hangingDB) Get(context.Context, string) ([]byte, error) {
	<-db.closed
	return nil, assert.AnError
}

// A waiter prints whether it asks a store with or without a place in line.
func TestWaiter_StatesWhileAsking(t *testing.T) {
	for name, tt := range map[string]struct {
		alg  Algorithm
		want string
	}{
		"bucket": {
			TokenBucket{Rate: PerSecond(1)},
			`wait for 1 of key ""… (3 bytes): asking`,
		},
		"in flight": {
			InFlight{Limit: 1, Timeout: time.Second},
			`wait for 1 of key ""… (3 bytes): entered, place 1 of 1, asked by its caller`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := hangingDB{closed: make(chan struct{})}
				defer close(db.closed)
				l := Must(New(tt.alg, WithStore(NewStore(db)), WithName("test")))
				ctx, leave := context.WithCancel(t.Context())
				w := begin(ctx, l, 1)
				assert.Equal(t, tt.want, w.String())
				leave()
				synctest.Wait()
				assert.Equal(t, `wait for 1 of key ""… (3 bytes): left`, w.String())
			})
		})
	}
}

// The text of a TurnError is for readers: with rounded durations, and the number of events.
func TestTurnError_Text(t *testing.T) {
	for _, tt := range []struct {
		err  TurnError
		want string
	}{
		{
			TurnError{N: 1, Wait: 998970 * time.Microsecond, Left: 99983341},
			"ratelimit: 1 event would have to wait 999ms, and the context ends in 100ms: " +
				"context deadline exceeded",
		},
		{
			TurnError{N: 20, Wait: time.Hour, Left: 0},
			"ratelimit: 20 events would have to wait 1h0m0s, and the context ends in 0s: " +
				"context deadline exceeded",
		},
		{
			TurnError{N: 2, Wait: 999, Left: 12345},
			"ratelimit: 2 events would have to wait 999ns, and the context ends in 12.3µs: " +
				"context deadline exceeded",
		},
	} {
		assert.Equal(t, tt.want, tt.err.Error())
	}
}
