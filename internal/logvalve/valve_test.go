package logvalve

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestValve(t *testing.T) {
	var v Valve
	begin := time.Time{} // a mock clock may show it
	for i, step := range []struct {
		at   time.Duration
		held int
		ok   bool
	}{
		{0, 0, true},
		{0, 0, false},
		{time.Second - 1, 0, false},
		{time.Second, 2, true},
		{2*time.Second - 1, 0, false},
		{time.Hour, 1, true},
		{2 * time.Hour, 0, true},
		{time.Hour, 0, true}, // the clock was set back
		{time.Hour + 1, 0, false},
	} {
		held, ok := v.Pass(begin.Add(step.at), time.Second)
		assert.Equal(t, step.ok, ok, "step %d", i)
		assert.Equal(t, step.held, held, "step %d", i)
	}
}
