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

// TestQuotaRenewed is of a limit of 60: what may be sent after the reset.
func TestQuotaRenewed(t *testing.T) {
	for name, tt := range map[string]struct {
		left          int
		reset, window int // in seconds
		underWay      int
		want          int
	}{
		"whole window":            {0, 60, 60, 0, 60},
		"whole window, under way": {0, 60, 60, 50, 10},
		"all are under way":       {0, 60, 60, 70, 0},
		"window not known":        {7, 60, 0, 0, 60},
		"half of the window":      {0, 30, 60, 0, 30},
		"what was left":           {20, 30, 60, 0, 50},
		"one comes back":          {59, 1, 60, 0, 60},
		"less than one":           {5, 1, 3600, 0, 6},
		"no more than the limit":  {45, 30, 60, 0, 60},
		"less those under way":    {45, 30, 60, 20, 40},
		"what comes back":         {45, 30, 60, 50, 30}, // those under way may have been counted long ago
	} {
		q := Quota{Left: tt.left, Limit: 60, Reset: time.Duration(tt.reset) * time.Second, Window: time.Duration(tt.window) * time.Second}
		assert.Equal(t, tt.want, q.renewed(tt.underWay), name)
	}
}
