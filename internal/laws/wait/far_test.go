package wait_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
)

// A line in a database keeps the rate of its limit, although each call takes longer than an event:
// turns are asked for earlier by the time that the store takes.
func TestLineInAFarDatabase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &fakes.Strange{MapDB: fakes.NewMapDB(), Call: func(context.Context) error {
			time.Sleep(40 * time.Millisecond)
			return nil
		}}
		l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(100), Burst: 1},
			ratelimit.WithStore(db.Store()), ratelimit.WithName("test")))
		const many = 500
		began := time.Now()
		var all sync.WaitGroup
		for range many {
			all.Go(func() { assert.NoError(t, l.Wait(t.Context(), "key")) })
		}
		all.Wait()
		assert.Less(t, time.Since(began), many*10800*time.Microsecond)
	})
}
