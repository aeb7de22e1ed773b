package client

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestEnough checks when requests need not be spread: while more than an eighth of a known limit
// is left, or if no wait helps.
func TestEnough(t *testing.T) {
	for _, tt := range []struct {
		left, limit int
		reset       time.Duration
		want        bool
	}{
		{20, 159, 5, true},
		{20, 160, 5, false},
		{1, 7, 5, true},
		{1, 8, 5, false},
		{0, 3, 5, false},
		{1000, 0, 5, false}, // the limit is not known
		{0, 3, 0, true},
		{0, 0, 0, true},
	} {
		assert.Equal(t, tt.want, Quota{Left: tt.left, Limit: tt.limit, Reset: tt.reset}.enough(tt.left), "%+v", tt)
	}
	// The item that needs a slower pace counts, even if less is left of another one in time.
	daily, minutely := `"daily";r=50;t=86400`, `"minutely";r=1;t=2`
	for _, field := range []string{daily + "," + minutely, minutely + "," + daily} {
		assert.Equal(t, Quota{Left: 1, Reset: 2 * time.Second, Limit: 10}, read([]string{field}, []string{`"daily";q=100, "minutely";q=10`}))
	}
}

// TestLeftIsBounded has a server that says ten things at once: those with least left are kept.
func TestLeftIsBounded(t *testing.T) {
	now := time.Unix(0, 0)
	var l left
	for _, n := range []int{3, 9, 1, 5, 8, 7, 2, 6, 0, 4} {
		l.hear(newPair(Quota{Left: n, Reset: time.Duration(n+1) * time.Second}, now, now), 0, now)
	}
	var kept []int
	for _, p := range l.pairs {
		kept = append(kept, p.quota.Left)
	}
	assert.ElementsMatch(t, []int{0, 1, 2, 3, 4, 5, 6, 7}, kept)
}

// TestLeftLearnsWindows is of a limit of 60 in five seconds, of which the server does not say the window. It
// is taken from the time until the reset when most is used, also from a response that comes late, and
// not from a refusal, which speaks of the next request.
func TestLeftLearnsWindows(t *testing.T) {
	now := time.Unix(0, 0)
	var l left
	l.hear(newPair(Quota{Left: 48, Reset: time.Second, Limit: 60}, now, now), 0, now)
	assert.Equal(t, 5*time.Second, l.pairs[0].window(), "a bucket")
	l.hear(newPair(Quota{Left: 10, Reset: 5 * time.Second, Limit: 60}, now.Add(-10*time.Second), now), 0, now)
	assert.Equal(t, 6*time.Second, l.pairs[0].window(), "from a response that says nothing of the present")

	refusal := answer{refused: true, known: true, quota: Quota{Reset: time.Second, Limit: 60}}
	l.hear(refusal.pair(time.Second, now, now), l.heard, now)
	assert.Equal(t, 6*time.Second, l.pairs[0].window(), "after a refusal")
	l.hear(newPair(Quota{Reset: 7 * time.Second, Limit: 30}, now, now), l.heard, now)
	assert.Equal(t, 7*time.Second, l.pairs[0].window(), "of another limit")
}

// TestQuotaAfter is of a limit of 60: what is left when the time until the reset, or more, is over.
func TestQuotaAfter(t *testing.T) {
	for name, tt := range map[string]struct {
		left            int
		elapsed, window int // in seconds
		want            int
	}{
		"whole window":           {0, 60, 60, 60},
		"window not known":       {7, 1, 0, 60},
		"half of the window":     {0, 30, 60, 28},
		"what was left":          {20, 30, 60, 48},
		"one comes back":         {59, 1, 60, 60},
		"less than one":          {5, 1, 3600, 6},
		"no more than the limit": {45, 30, 60, 60},
	} {
		q := Quota{Left: tt.left, Limit: 60, Window: time.Duration(tt.window) * time.Second}
		assert.Equal(t, tt.want, q.after(time.Duration(tt.elapsed)*time.Second), name)
	}
}

// TestPairSpreads: the nth request from now may go when n−1 of those that are left have gone, spread
// evenly over the time until there are more.
func TestPairSpreads(t *testing.T) {
	now := time.Unix(0, 0)
	p := newPair(Quota{Left: 10, Reset: 100 * time.Second, Limit: 1000}, now, now)
	p.next = now.Add(5 * time.Second)
	for n, want := range map[int]time.Duration{1: 5e9, 2: 14.5e9, 5: 43e9, 10: 90.5e9, 11: 100e9} {
		assert.Equal(t, want, p.opens(n, outgoing{}, now).Sub(now), n)
	}
}
