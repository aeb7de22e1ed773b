package storetest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/model"
)

// testCancelOrder makes four reservations on a key and cancels them in every order (in three orders
// in short runs). After each cancellation, the key must equal the reference model.
func testCancelOrder(s *suite) {
	subtests(s, Algorithms(), func(s *suite, alg ratelimit.Algorithm) {
		b := s.bench(alg)
		for i, order := range orders(4) {
			if (testing.Short() || s.Steps < 500) && i%8 != 0 {
				continue
			}
			key := fmt.Sprint(order)
			k := model.New(alg, s.Tick)
			now := b.clk.Now().UnixNano()
			c := &comparison{suite: s, bench: b, alg: alg}
			c.logf("%v: four reservations, cancelled in the order %v", alg, order)
			peek := func() {
				got, err := b.Peek(ctx, key)
				want := k.Peek(now)
				got.Part = want.Part // unspecified while a reservation is pending
				c.compare(want, got, err)
			}
			used := (k.Limit() + 1) / 2
			k.Take(now, used)
			b.AllowN(key, used)
			var line []*heldPair
			for _, n := range []int{1, k.Limit(), 1, max(1, k.Limit()/2)} {
				p := &heldPair{}
				var wantErr, err error
				if c.onlyHolds() {
					_, p.held, wantErr = k.HoldWithin(now, n, model.Terms{}, ratelimit.Never)
				} else {
					_, p.model, wantErr = k.Reserve(now, n, ratelimit.Never)
				}
				p.real, _, err = b.Reserve(ctx, key, n)
				if err != nil {
					c.differ("error %v", "error %v", wantErr, err)
				}
				if p.real == nil && wantErr == nil || p.real != nil && wantErr != nil {
					c.differ("error %v", "reserved %t", wantErr, p.real != nil)
				}
				line = append(line, p)
			}
			peek()
			for _, i := range order {
				c.logf("Cancel of reservation %d", i)
				line[i].real.Cancel()
				switch {
				case !c.onlyHolds():
					k.Cancel(now, line[i].model)
					peek()
				default:
					// When holds are cancelled, the other reservations of a bucket keep their
					// turns, even if their events leave the bucket later.
					k.Settle(now, line[i].held, 0)
					c.bounded(&comparedKey{name: key, model: k})
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
