package redisstore

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

// takeEach takes one event of each key at once, and waits for the answers.
func takeEach(t *testing.T, l ratelimit.Limiter, keys []string) {
	t.Helper()
	_, err := ratelimit.TakeEach(t.Context(), l, keys, 1, nil)
	require.NoError(t, err)
}

// A batch has at most maxBatch commands.
func TestLargeBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newDelayedServer(t)
		s, l := f.store(t)
		takeEach(t, l, manyKeys(maxEach))
		assert.Equal(t, []int{maxBatch, maxBatch}, f.Together)
		requireIdle(t, s)
	})
}

// If the server of a key is not known, its command is sent by itself: others may be on a server that
// hangs.
func TestCommandsApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newDelayedServer(t)
		s, l := f.storeThrough(t, unknownServer{f})
		begin := time.Now()
		takeEach(t, l, manyKeys(20))
		assert.Equal(t, slices.Repeat([]int{1}, 20), f.Together)
		assert.Equal(t, f.Delay, time.Since(begin), "at once")
		requireIdle(t, s)
	})
}

// A command for many calls on a key is sent by itself, because the server takes long for it.
func TestBulkyCommand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 1000, Window: time.Hour})
		f.Delay = 10 * time.Millisecond
		s, l := f.store(t)
		keys := manyKeys(3)
		for range bulky {
			keys = append(keys, "hot", "hot")
		}
		takeEach(t, l, append(keys, "last"))
		assert.ElementsMatch(t, []int{3, 1, 1}, f.Together)
		assert.ElementsMatch(t, []int{1, 1, 1, 2 * bulky, 1}, f.Batches)
		requireIdle(t, s)
	})
}

// While few batches are in progress, a command does not wait for one of them. From then on, it waits
// for others or for the next tick.
func TestSenders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 1000, Window: time.Hour})
		f.Delay = time.Second
		s, l := f.store(t, WithTimeout(2*time.Second))
		received := func() (numbers []int) {
			time.Sleep(f.Delay/2 + time.Millisecond)
			f.Set(func() { numbers = slices.Clone(f.Together) })
			return numbers
		}
		var wg sync.WaitGroup
		call := func(key string) {
			wg.Go(func() { assert.True(t, l.Allow(key)) })
			synctest.Wait()
		}
		begin := time.Now()
		for i := range fewSenders {
			call(fmt.Sprint("few ", i))
		}
		want := slices.Repeat([]int{1}, fewSenders)
		assert.Equal(t, want, received(), "at once")

		for i := range fewSenders {
			call(fmt.Sprint("more ", i))
		}
		call("one more")
		want = append(want, fewSenders)
		assert.Equal(t, want, received(), "when as many wait as batches are in progress")
		wg.Wait()
		assert.Equal(t, append(want, 1), f.Together)
		tick := s.timeout / ticksPerTimeout
		assert.Equal(t, 3*tick+f.Delay, time.Since(begin), "at the next tick")
		settle()
		requireIdle(t, s)
	})
}
