package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestSuggestion: the limits are the lowest ones that deny so little.
func TestSuggestion(t *testing.T) {
	var log strings.Builder
	for key := range 200 { // key i sends i + 1 requests within a minute
		for i := range key + 1 {
			fmt.Fprintf(&log, "2026-03-02T09:00:%02dZ key-%d\n", i%60, key)
		}
	}
	for limit, want := range map[string]string{
		"60/1m":  "A fixed window of 181/m would deny at most 1 % of the requests, and one of 198/m anything to at most 1 % of the keys.",
		"60/day": "A calendar window of 181/day would deny at most 1 % of the requests, and one of 198/day anything to at most 1 % of the keys.",
	} {
		alg := "fixed"
		if limit == "60/day" {
			alg = "calendar"
		}
		got, _ := runReplay(t, log.String(), "-o", "", "-limit", limit, "-alg", alg, "-")
		assert.Contains(t, got, want)
	}
	got, _ := runReplay(t, log.String(), "-o", "", "-alg", "warmup", "-")
	assert.NotContains(t, got, "would deny", "it denies bursts with any limit")
}

// TestSomeKeys: of a long log, all requests of some keys are replayed.
func TestSomeKeys(t *testing.T) {
	whole := read(t, "1 a\n2 b\n3 c 5\n4 a\n5 d\n6 c\n", "-")
	part := whole.someKeys(3)
	assert.Equal(t, []string{"a", "c"}, part.keys)
	assert.Equal(t, int64(8), part.total)
	require.Len(t, part.requests, 4)
	assert.Equal(t, []int32{0, 1, 0, 1}, []int32{part.requests[0].key, part.requests[1].key, part.requests[2].key, part.requests[3].key})
	assert.Same(t, whole, whole.someKeys(6))
}
