package contenders

import (
	"context"
	"errors"
	"testing"

	"github.com/ratelimit-go/ratelimit"
)

// A fixed limiter gives the same decisions and error to every call for many keys.
type fixed struct {
	ratelimit.Limiter // nil; its methods are not called
	decisions         []ratelimit.Decision
	err               error
}

func (f fixed) TakeEach(_ context.Context, _ []string, _ int, out []ratelimit.Decision) ([]ratelimit.Decision, error) {
	return append(out, f.decisions...), f.err
}

// TestTakingEach checks that a call counts for nothing if it fails or if decisions are missing
// or left over.
func TestTakingEach(t *testing.T) {
	yes, no := ratelimit.Decision{Allowed: true}, ratelimit.Decision{}
	for _, tt := range []struct {
		decisions []ratelimit.Decision
		err       error
		want      int
	}{
		{[]ratelimit.Decision{yes, yes}, nil, 2},
		{[]ratelimit.Decision{no, yes}, nil, 1},
		{[]ratelimit.Decision{yes, yes}, errors.New("no server"), 0},
		{[]ratelimit.Decision{yes}, nil, 0},
		{[]ratelimit.Decision{yes, yes, yes}, nil, 0},
	} {
		each := takingEach(fixed{decisions: tt.decisions, err: tt.err})
		for range 2 { // the second call reuses the decisions
			if got := each([]string{"a", "b"}); got != tt.want {
				t.Errorf("%v with error %v: %d allowed, want %d", tt.decisions, tt.err, got, tt.want)
			}
		}
	}
}
