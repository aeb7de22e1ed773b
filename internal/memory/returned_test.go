package memory

import (
	"fmt"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

func TestReturnStripeSize(t *testing.T) {
	if unsafe.Sizeof(uintptr(0)) == 8 {
		assert.Equal(t, 64, int(unsafe.Sizeof(returnStripe{})))
	}
}

// noted returns the number of keys of which something is noted.
func (sp *Tables) noted() (keys int) {
	for s := range sp.returned.each() {
		keys += len(s.runs)
	}
	return keys
}

// What came back is noted only if something was granted since, and forgotten some time after the
// bucket would have been full again.
func TestReturnedIsForgotten(t *testing.T) {
	bucket, err := kernel.NewTokenBucket(1, time.Second, time.Second, 10, kernel.InMemory, "TokenBucket")
	require.NoError(t, err)
	l, s, clk := newTestLimiter(t, kernel.Compile(bucket, kernel.InMemory))
	settle := func(key string, others int) {
		var h Held
		var returns uint32
		var a kernel.Answer
		for range 2 { // the second time, the key is known
			if l.fast.Hold(l.timeline, key, 2, &h, &returns, &a) {
				break
			}
			require.True(t, l.apply(kernel.OpTake, key, 1).Allowed)
		}
		require.True(t, a.Allowed)
		if others > 0 {
			require.True(t, l.apply(kernel.OpTake, key, others).Allowed)
		}
		l.fast.Settle(l.timeline, &h, returns, 2, a.Due, 0, &a)
	}
	for i := range 1000 {
		settle(fmt.Sprint(i), 0)
	}
	assert.Zero(t, l.fast.noted())
	before := s.Stats().Bytes
	for i := range 1000 {
		settle(fmt.Sprint(i), 1)
	}
	assert.Equal(t, 1000, l.fast.noted())
	assert.Greater(t, s.Stats().Bytes, before)
	for i := range 20_000 {
		clk.Advance(10 * time.Millisecond) // so 1000 keys are of the last ten seconds
		settle(fmt.Sprint(i), 1)
	}
	assert.Less(t, l.fast.noted(), 2*1000+stripes*fewRuns)
}
