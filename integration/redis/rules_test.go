package redis_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/redisstore"
	"github.com/ratelimit-go/ratelimit/rules"
)

// A call that counts against two rules is one command, whether they grant it or refuse it, and a refusal
// spends nothing.
func TestRulesInOneCall(t *testing.T) {
	withEach(t, func(t *testing.T, create maker) {
		store := create(t, startServer(t).addr(), redisstore.WithTimeout(patient), redisstore.WithDenialCache(0))
		set, err := rules.New(t.Context(), rules.Static(
			rules.Rule{ID: "wide", Call: "/{x}", Limit: 10, Window: time.Hour},
			rules.Rule{ID: "narrow", Call: "/{x}/{y}", Limit: 2, Window: time.Hour},
		), rules.WithLimiter(ratelimit.WithStore(store)))
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, set.Close()) })
		h := set.Middleware()(http.NotFoundHandler())
		get := func() int {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/a%2Fb", http.NoBody))
			return w.Code
		}
		require.Equal(t, 404, get(), "this sends the script in full")
		for _, want := range []int{404, 429, 429} {
			before := store.Stats().Calls
			require.Equal(t, want, get())
			require.EqualValues(t, 1, store.Stats().Calls-before)
		}
		a, err := set.Take(t.Context(), "192.0.2.1", http.MethodGet, "/a", 1)
		require.NoError(t, err)
		assert.Equal(t, 7, a.Remaining, "two were granted, and this one")
	})
}
