package memory

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// takesBack are the ways to take back two events. Each takes them from a key now, and returns what
// takes them back.
var takesBack = map[string]func(t *testing.T, l *limiter, key string) (back func()){
	"the last hold": holdTwo,
	"an earlier hold": func(t *testing.T, l *limiter, key string) func() {
		back := holdTwo(t, l, key)
		require.True(t, l.AllowN(key, 1))
		return back
	},
	"a hold with a Grant": func(t *testing.T, l *limiter, key string) func() {
		a := l.apply(kernel.OpHold, key, 2)
		require.True(t, a.Allowed)
		return func() { l.do(key, &kernel.Request{Op: kernel.OpSettle, Grant: a.Grant, Clock: l.timeline}) }
	},
	"events": func(t *testing.T, l *limiter, key string) func() {
		now, _ := l.timeline.Now()
		require.True(t, l.AllowN(key, 2))
		return func() { l.do(key, &kernel.Request{Op: kernel.OpReturn, N: 2, Taken: now, Clock: l.timeline}) }
	},
}

// holdTwo holds two events, and returns what settles them for none.
func holdTwo(t *testing.T, l *limiter, key string) (back func()) {
	var h Held
	var returns uint32
	var a kernel.Answer
	require.True(t, l.fast.Hold(l.timeline, key, 2, &h, &returns, &a))
	return func() { l.fast.Settle(l.timeline, &h, returns, 2, a.Due, 0, new(kernel.Answer)) }
}

// Whoever takes events back waits for the lock of the key's stripe, and then sees that another caller
// has taken some back meanwhile, even if as many were granted, so that the word is what it was.
func TestTakesBackUnderTheLock(t *testing.T) {
	for name, take := range takesBack {
		t.Run(name, func(t *testing.T) {
			l, _, clk := newTestLimiter(t, bucket(10, 10*time.Second))
			for _, key := range []string{"waits", "later"} {
				require.True(t, l.AllowN(key, 4))
			}
			waits, later := take(t, l, "waits"), take(t, l, "later")
			clk.Advance(time.Second) // of the two, only one can come back if others were granted

			s := l.stripe("waits")
			state, done := l.word(t, "waits"), make(chan struct{})
			s.mu.Lock()
			before := atomic.LoadUint64(state)
			go func() {
				defer close(done)
				waits()
			}()
			for range 10_000 { // enough to get to the lock
				runtime.Gosched()
			}
			assert.Equal(t, before, atomic.LoadUint64(state), "changed without the lock")
			l.replaceOne(t, "waits")
			s.mu.Unlock()
			<-done

			s = l.stripe("later")
			s.mu.Lock()
			l.replaceOne(t, "later")
			s.mu.Unlock()
			later()
			assert.Equal(t, l.apply(kernel.OpPeek, "later", 1), l.apply(kernel.OpPeek, "waits", 1))
		})
	}
}

// stripe returns the stripe of key.
func (l *limiter) stripe(key string) *returnStripe {
	return l.fast.returned.made(l.fast.store.identify(key))
}

// word returns the state of key.
func (l *limiter) word(t *testing.T, key string) *uint64 {
	id := l.fast.store.identify(key)
	tbl := l.fast.at(id)
	p, ok := tbl.find(id)
	require.True(t, ok)
	return tbl.word(p)
}

// replaceOne takes an event back from a key of bucket(10, 10*time.Second), and takes one, so that the
// word is the same again. The caller holds the lock of the stripe.
func (l *limiter) replaceOne(t *testing.T, key string) {
	s, state := l.stripe(key), l.word(t, key)
	word := atomic.LoadUint64(state)
	now, _ := l.timeline.Now()
	l.fast.sweep(s, now) // makes s.runs
	assert.True(t, s.swap(state, l.fast.store.identify(key), word, word-uint64(time.Second), false, now+l.fast.fills))
	assert.True(t, l.AllowN(key, 1))
	assert.Equal(t, word, atomic.LoadUint64(state))
}
