package httplimit_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
)

// A stricter limit is tried before it is enforced. Its name tells the observer that its denials
// refuse nobody.
func ExampleWithShadow() {
	denied := map[string]int{} // by name; a server's observer counts them by package otellimit
	count := ratelimit.WithObserver(func(_ context.Context, o ratelimit.Observation) {
		if o.Outcome == ratelimit.Denied {
			denied[o.Limiter]++
		}
	})
	day := func(limit int) ratelimit.FixedWindow {
		return ratelimit.FixedWindow{Limit: limit, Window: 24 * time.Hour, Start: ratelimit.StartOnFirstEvent}
	}
	limit := ratelimit.Must(ratelimit.New(day(4), count, ratelimit.WithName("api")))
	tried := ratelimit.Must(ratelimit.New(day(1), count, ratelimit.WithName("api, shadow")))

	handler := httplimit.Middleware(limit)(httplimit.Middleware(tried,
		httplimit.WithShadow(1, func(*http.Request, ratelimit.Decision) {}))(http.NotFoundHandler()))
	for range 5 {
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", http.NoBody))
	}
	fmt.Println("refused:", denied["api"])
	fmt.Println("would be refused:", denied["api, shadow"])
	// Output:
	// refused: 1
	// would be refused: 3
}
