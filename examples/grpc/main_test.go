package main

import (
	"strings"
	"testing"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/ratelimit-go/ratelimit"
)

// TestRun checks what the program prints.
func TestRun(t *testing.T) {
	clk := clock.NewMock()
	var out strings.Builder
	done := make(chan error)
	go func() {
		done <- run(t.Context(), &out, ratelimit.Rate{Events: 3, Per: 3 * time.Second}, clk, clk.Add)
	}()
	for running := true; running; { // the second client sleeps by the clock
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			running = false
		default:
			if clk.Now().Unix() >= 3 { // the first client has moved it so far
				clk.Add(100 * time.Millisecond)
			}
		}
	}
	const want = `A client that retries by itself. Its limit is 3/3s.
OK                 ratelimit: ["default";r=2;t=1]
OK                 ratelimit: ["default";r=1;t=2]
OK                 ratelimit: ["default";r=0;t=3]
ResourceExhausted  ratelimit: ["default";r=0;t=1]
                   RetryInfo: 1s
OK                 ratelimit: ["default";r=0;t=3]
ResourceExhausted  ratelimit: ["default";r=0;t=1]
                   RetryInfo: 1s
OK                 ratelimit: ["default";r=0;t=3]
ResourceExhausted  ratelimit: ["default";r=0;t=1]
                   RetryInfo: 1s
`
	if got := out.String(); !strings.HasPrefix(got, want) {
		t.Errorf("it printed\n%s", got)
	}
	if got := out.String(); !strings.Contains(got, "6 calls were granted and ") {
		t.Errorf("it printed\n%s", got)
	}
}
