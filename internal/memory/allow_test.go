package memory

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/step"
)

// each takes n events of each key.
func (l *limiter) each(keys []string, n int, between func(i int)) (answers []step.Answer) {
	req := step.Request{Op: step.OpTake, N: n, Clock: l.timeline}
	var b Batch
	for len(keys) > 0 {
		count := l.fast.Touch(keys, &b)
		for i := range count {
			between(len(answers))
			var a step.Answer
			l.fast.TakeOf(&b, i, &req, &a)
			answers = append(answers, a)
		}
		keys = keys[count:]
	}
	return answers
}

// What others do to a key after a batch has looked for it is not lost, and not overlooked.
func TestBatchMeanwhile(t *testing.T) {
	for _, k := range []*step.Machine{bucket(10, time.Second), aligned(10, time.Second), sliding(10, time.Second, 5)} {
		for name, meanwhile := range map[string]func(l *limiter, s *Store, advance func(time.Duration)){
			"nothing": func(*limiter, *Store, func(time.Duration)) {},
			"taken":   func(l *limiter, _ *Store, _ func(time.Duration)) { l.AllowN("key", 3) },
			"taken later": func(l *limiter, _ *Store, advance func(time.Duration)) {
				advance(300 * time.Millisecond)
				l.AllowN("key", 3)
			},
			"taken and spent": func(l *limiter, _ *Store, _ func(time.Duration)) { l.AllowN("key", 6) },
			"reset":           func(l *limiter, _ *Store, _ func(time.Duration)) { _ = l.Reset(context.Background(), "key") },
			"reset and taken": func(l *limiter, _ *Store, _ func(time.Duration)) {
				_ = l.Reset(context.Background(), "key")
				l.AllowN("key", 9)
			},
			"replaced": func(_ *limiter, s *Store, _ func(time.Duration)) { s.Shrink() },
			"split": func(l *limiter, _ *Store, _ func(time.Duration)) {
				for i := range 1000 {
					l.Allow(fmt.Sprint("other ", i))
				}
			},
		} {
			for _, used := range []int{4, 10} {
				if name == "taken later" && used == 10 {
					continue // nothing is taken, and an earlier decision is as right
				}
				batch, s, clk := newTestLimiter(t, k)
				loop, _, clk2 := newTestLimiter(t, k)
				for _, l := range []*limiter{batch, loop} {
					l.AllowN("key", used)
					l.Allow("unchanged")
					l.Allow("unchanged too")
				}
				keys := []string{"unchanged", "key", "key", "unchanged too", "key", "new", "new", "key"} // a new key replaces the table
				got := batch.each(keys, 2, func(i int) {
					if i == 1 {
						meanwhile(batch, s, clk.Advance)
					}
				})
				s.check(t)
				var want []step.Answer
				for i, key := range keys {
					if i == 1 {
						meanwhile(loop, loop.fast.store, clk2.Advance)
					}
					want = append(want, loop.apply(step.OpTake, key, 2))
				}
				require.Equal(t, want, got, "%s, %T, %d used", name, k.Kernel, used)
			}
		}
	}
}

// A batch keeps the limit together with others, while tables are replaced and split.
func TestBatchConcurrent(t *testing.T) {
	for _, k := range []*step.Machine{bucket(100, 1000*time.Hour), aligned(100, 10_000*time.Hour), sliding(100, 10_000*time.Hour, 5)} {
		l, s, _ := newTestLimiter(t, k)
		keys := make([]string, 3*BatchKeys/2)
		for i := range keys {
			keys[i] = fmt.Sprint("key ", i%(BatchKeys+7))
		}
		granted := make([]atomic.Int64, BatchKeys+7)
		var wg sync.WaitGroup
		for g := range 4 {
			wg.Go(func() {
				for range 60 {
					for i, a := range l.each(keys, 1, func(int) {}) {
						if a.Allowed {
							granted[i%(BatchKeys+7)].Add(1)
						}
					}
					if g == 0 {
						s.Shrink()
					}
					for i := range 20 {
						l.Allow(fmt.Sprint("other ", g, i))
					}
				}
			})
		}
		wg.Wait()
		s.check(t)
		for i := range granted {
			assert.Equal(t, int64(100), granted[i].Load(), "key %d, %T", i, k.Kernel)
		}
	}
}
