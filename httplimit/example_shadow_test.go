package httplimit_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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

// introduce is the code of docs/introduce.md.
func introduce(
	next http.Handler, share float64, observer ratelimit.Observer, report func(*http.Request, ratelimit.Decision),
) (http.Handler, error) {
	trial, err := ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerMinute(60)},
		ratelimit.WithName("api, shadow"), ratelimit.WithObserver(observer))
	if err != nil {
		return nil, err
	}
	return httplimit.Middleware(trial, httplimit.WithShadow(share, report))(next), nil
}

// TestIntroduce: a limit is introduced step by step, for no client, then for half of them, then for
// all.
func TestIntroduce(t *testing.T) {
	for share, want := range map[float64]int{1: 0, 0.5: 49, 0: 100} {
		synctest.Test(t, func(t *testing.T) {
			refused, observed, reported := 0, 0, 0
			handler, err := introduce(http.NotFoundHandler(), share,
				func(context.Context, ratelimit.Observation) { observed++ },
				func(*http.Request, ratelimit.Decision) { reported++ })
			require.NoError(t, err)
			for client := range 100 {
				for range 61 {
					if serve(handler, from(fmt.Sprintf("192.0.2.%d:1", client))).StatusCode == http.StatusTooManyRequests {
						refused++
					}
				}
			}
			assert.Equal(t, []int{want, 100 - want, 6100}, []int{refused, reported, observed})
		})
	}
}
