package storetest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/history"
	"github.com/ratelimit-go/ratelimit/internal/model"
)

// testCancelOrder makes four reservations on a key and cancels them in every order (in three orders
// in short runs). After each cancellation, the key must equal the reference model.
func testCancelOrder(s *suite) {
	subtests(s, Algorithms(), func(s *suite, alg ratelimit.Algorithm) {
		setup := s.setup(alg)
		limit := model.New(alg, s.Tick).Limit()
		p := setup.New()
		for round, order := range orders(4) {
			if (testing.Short() || s.Steps < 500) && round%8 != 0 {
				continue
			}
			key := fmt.Sprint(order)
			name := func(i int) string { return fmt.Sprintf("r%d.%d", round, i) }
			ops := []history.Op{{Verb: history.Take, Key: key, N: (limit + 1) / 2}}
			for i, n := range []int{1, limit, 1, max(1, limit/2)} {
				ops = append(ops, history.Op{
					Verb: history.Reserve, Key: key, N: n, Name: name(i),
				})
			}
			for _, i := range order {
				ops = append(ops, history.Op{Verb: history.Cancel, Name: name(i)})
			}
			for _, o := range ops {
				if wrong := p.Do(o); wrong != nil {
					s.broken("%v", setup.Explain(ops, wrong))
				}
			}
		}
	})
	testCancelTogether(s)
}

// testCancelTogether cancels many reservations concurrently.
func testCancelTogether(s *suite) {
	b := s.bench(ratelimit.TokenBucket{Rate: ratelimit.PerMinute(1)})
	b.Allow("k")
	before := s.peek(b, "k")
	var wg sync.WaitGroup
	for range 50 {
		r, _, err := b.Reserve(context.Background(), "k", 1)
		if err != nil {
			s.Fatalf("the store failed: %v", err)
		}
		wg.Go(r.Cancel)
	}
	wg.Wait()
	if d := s.peek(b, "k"); d != before {
		s.broken("50 reservations were cancelled concurrently: before\n%+v\nafter\n%+v", before, d)
	}
}

// orders returns all permutations of 0…n−1.
func orders(n int) (all [][]int) {
	if n == 0 {
		return [][]int{nil}
	}
	for _, shorter := range orders(n - 1) {
		for i := range n {
			all = append(all, slices.Insert(slices.Clone(shorter), i, n-1))
		}
	}
	return all
}
