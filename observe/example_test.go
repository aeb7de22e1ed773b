package observe_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"os"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/observe"
)

// Which keys are denied most, and how often? The log has a line for the first denial in each ten
// seconds, with the number of the others.
func Example() {
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: withoutTime}))

	denied, err := observe.TopDenied(100)
	if err != nil {
		log.Fatal(err)
	}
	limiter := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(3)},
		ratelimit.WithName("exports"),
		ratelimit.WithObserver(denied.Observe),
		ratelimit.WithObserver(observe.Slog(logger, 10*time.Second))))

	for _, user := range []string{"bob", "eve", "eve", "bob", "eve", "bob"} {
		limiter.Allow(user)
	}
	_, _ = limiter.Take(context.Background(), "eve", 5) // more than there ever are
	limiter.Allow("bob")
	limiter.Allow("bob")
	for _, d := range denied.Top(10) {
		fmt.Printf("%s: %s was denied %.0f times\n", d.Limiter, d.Key, d.Count)
	}
	// Output:
	// level=INFO msg="ratelimit: denied" limiter=exports call=take n=5 never=true
	// exports: bob was denied 2 times
	// exports: eve was denied 1 times
}

// Who has used four fifths of a quota, and who uses most?
func ExampleCrossed() {
	used, err := observe.TopUsed(100)
	if err != nil {
		log.Fatal(err)
	}
	warn := observe.Crossed(0.8, func(_ context.Context, o ratelimit.Observation) {
		d := o.Decision
		fmt.Printf("%s has used %d of %d exports\n", o.Key, d.Limit-d.Remaining, d.Limit)
	})
	quota := ratelimit.FixedWindow{Limit: 5, Window: 24 * time.Hour, Start: ratelimit.StartOnFirstEvent}
	limiter := ratelimit.Must(ratelimit.New(quota, ratelimit.WithName("exports"),
		ratelimit.WithObserver(warn), ratelimit.WithObserver(used.Observe)))

	for _, user := range []string{"bob", "eve", "eve", "eve", "eve", "eve", "eve", "bob"} {
		limiter.Allow(user)
	}
	for _, u := range used.Top(10) {
		fmt.Printf("%s: %s used %.0f\n", u.Limiter, u.Key, u.Count)
	}
	// Output:
	// eve has used 4 of 5 exports
	// exports: eve used 5
	// exports: bob used 2
}

// withoutTime leaves the time out of a line, because it is always another one.
func withoutTime(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}
