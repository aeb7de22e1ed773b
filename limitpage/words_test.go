package limitpage

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/ratelimit-go/ratelimit"
)

func TestWords(t *testing.T) {
	bucket := ratelimit.TokenBucket{Rate: ratelimit.PerMinute(1000), Burst: 20}
	for _, tt := range []struct {
		alg         ratelimit.Algorithm
		name, limit string
	}{
		{bucket, "TokenBucket", "1,000/m, burst 20"},
		{ratelimit.All{bucket, ratelimit.FixedWindow{Limit: 5, Window: time.Hour}}, "All", "1,000/m, burst 20, and 5 in each hour"},
		{nil, "unknown algorithm", "unknown: the limiter does not tell it"},
	} {
		name, limit := words(tt.alg)
		assert.Equal(t, tt.name, name)
		assert.Equal(t, tt.limit, limit)
	}
}
