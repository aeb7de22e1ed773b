// Budgets lets 200 agents of a team call a language model at once. The team may spend 20 dollars a
// month, and each agent and the team a number of tokens a minute. The model is a fake one, and
// answers after some milliseconds.
//
//	go run ./examples/budgets
package main

import (
	"context"
	"fmt"
	"log"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

func main() {
	b, err := newBudget(20, func(_ context.Context, o ratelimit.Observation) {
		left := dollars(o.Decision.Remaining)
		fmt.Printf("80 %% are spent or held by %s: %.3f dollars are left\n", o.Key, left)
	})
	if err != nil {
		log.Fatal(err)
	}
	refused := agents(context.Background(), b, 200, think)
	d, err := b.money.Peek(context.Background(), "research")
	if err != nil {
		log.Fatal(err)
	}
	spent := dollars(d.Limit - d.Remaining)
	fmt.Printf("%.3f dollars are spent, and %d agents were refused\n", spent, refused)
}

// agents lets n agents of the team "research" call a model until the month's budget refuses them.
// It returns how many were refused.
func agents(ctx context.Context, b *budget, n int, m model) (refused int) {
	var all sync.WaitGroup
	var mu sync.Mutex
	for i := range n {
		all.Go(func() {
			for {
				d, err := b.call(ctx, fmt.Sprint("agent ", i), "research", 1_000, m)
				switch {
				case err != nil:
					return
				case d.Allowed:
				case d.Part == ofMonth:
					mu.Lock()
					refused++
					mu.Unlock()
					return
				default: // too many tokens in this minute
					time.Sleep(d.RetryAfter)
				}
			}
		})
	}
	all.Wait()
	return refused
}

// think is a fake model.
func think(context.Context) (tokens int, err error) {
	time.Sleep(rand.N(20 * time.Millisecond))
	return 100 + rand.N(900), nil
}
