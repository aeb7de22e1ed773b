package httplimit_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/httplimit/key"
)

func Example() {
	limiter := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 2, Window: 24 * time.Hour, Start: ratelimit.StartOnFirstEvent}))
	mux := http.NewServeMux()
	mux.HandleFunc("GET /hello", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "hello") })
	server := httptest.NewServer(httplimit.Middleware(limiter)(mux))
	defer server.Close()

	for range 3 {
		resp, err := http.Get(server.URL + "/hello")
		if err != nil {
			fmt.Println(err)
			return
		}
		resp.Body.Close()
		fmt.Println(resp.Status, resp.Header.Get("RateLimit-Policy"), resp.Header.Get("RateLimit"))
	}
	// Output:
	// 200 OK "default";q=2;w=86400 "default";r=1;t=86400
	// 200 OK "default";q=2;w=86400 "default";r=0;t=86400
	// 429 Too Many Requests "default";q=2;w=86400 "default";r=0;t=86400
}

// A server that allows each client 60 requests a minute.
func ExamplePerClient() {
	mux := http.NewServeMux()
	log.Fatal(http.ListenAndServe(":8080", httplimit.PerClient(ratelimit.PerMinute(60))(mux)))
}

// A server that remembers at most a million clients, however many a flood makes up.
func ExampleMiddleware_flood() {
	limit := ratelimit.FixedWindow{Limit: 1000, Window: 24 * time.Hour}
	mux := http.NewServeMux()
	limiter := ratelimit.Must(ratelimit.New(limit, ratelimit.WithName("clients"),
		ratelimit.WithStore(&ratelimit.MemoryStore{MaxKeys: 1_000_000})))
	log.Fatal(http.ListenAndServe(":8080", httplimit.Middleware(limiter)(mux)))
}

// A program whose options come from a configuration finds a mistake when it starts.
func ExampleNewGate() {
	limiter := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerMinute(60)}))
	_, err := httplimit.NewGate(limiter, httplimit.WithStatus(42))
	fmt.Println(err)
	// Output: httplimit: WithStatus's code is 42: it must be from 400 to 599
}

// A server that allows each API key 100 requests a minute. Authenticate the keys first: a client
// may send any.
func ExampleWithKey() {
	search := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "found") })
	mux := http.NewServeMux()

	limiter := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerMinute(100)}))
	limited := httplimit.Middleware(limiter, httplimit.WithKey(key.Header("X-API-Key")))
	mux.Handle("GET /search", limited(search))

	answered := make(map[int]int) // by status
	for i := range 202 {
		w, r := httptest.NewRecorder(), httptest.NewRequest("GET", "/search", nil)
		switch {
		case i > 0 && i <= 101:
			r.Header.Set("X-API-Key", "ann's")
		case i > 101:
			r.Header.Set("X-API-Key", "bob's")
		}
		mux.ServeHTTP(w, r)
		answered[w.Code]++
	}
	fmt.Println(answered)
	// Output: map[200:200 400:1 429:1]
}

// A server that allows each client 60 requests a minute, by any algorithm.
func ExampleMiddleware() {
	mux := http.NewServeMux()
	limiter := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerMinute(60)}))
	log.Fatal(http.ListenAndServe(":8080", httplimit.Middleware(limiter)(mux)))
}

// A server that handles at most five requests of a client at once, and 100 a minute.
func ExampleMiddleware_inFlight() {
	mux := http.NewServeMux()
	limiter := ratelimit.Must(ratelimit.New(ratelimit.All{
		ratelimit.InFlight{Limit: 5, Timeout: time.Minute},
		ratelimit.TokenBucket{Rate: ratelimit.PerMinute(100)},
	}))
	log.Fatal(http.ListenAndServe(":8080", httplimit.Middleware(limiter)(mux)))
}

// A server that allows each client five failed logins in 15 minutes. A login that succeeds
// costs nothing.
func ExampleWithSettle() {
	limiter := ratelimit.Must(ratelimit.New(ratelimit.SlidingWindow{Limit: 5, Window: 15 * time.Minute}))
	failures := httplimit.WithSettle(func(r *http.Request, status int) int {
		if status == http.StatusUnauthorized {
			return 1
		}
		return 0
	})
	login := httplimit.Middleware(limiter, failures)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("password") != "secret" {
			http.Error(w, "wrong password", http.StatusUnauthorized)
		}
	}))

	answered := make(map[int]int) // by status
	for _, password := range []string{"secret", "secret", "1", "2", "secret", "3", "4", "5", "6", "7"} {
		w := httptest.NewRecorder()
		login.ServeHTTP(w, httptest.NewRequest("POST", "/login?password="+password, nil))
		answered[w.Code]++
	}
	fmt.Println(answered)
	// Output: map[200:3 401:5 429:2]
}

// Browsers ask before a script of another origin sends a request. These preflight requests count
// nothing, because a middleware outside the limit answers them. The checks of a load balancer reach
// the handler, and count nothing.
func ExampleWithSkip() {
	cors := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != "" {
				w.WriteHeader(http.StatusNoContent)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
	limiter := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 1, Window: 24 * time.Hour, Start: ratelimit.StartOnFirstEvent}))
	checks := httplimit.WithSkip(func(r *http.Request) bool { return r.URL.Path == "/healthz" })
	handler := cors(httplimit.Middleware(limiter, checks)(http.NotFoundHandler()))

	for _, request := range []string{"OPTIONS /a", "OPTIONS /a", "PUT /a", "PUT /a", "GET /healthz"} {
		method, path, _ := strings.Cut(request, " ")
		w, r := httptest.NewRecorder(), httptest.NewRequest(method, path, nil)
		if method == http.MethodOptions {
			r.Header.Set("Access-Control-Request-Method", http.MethodPut)
		}
		handler.ServeHTTP(w, r)
		fmt.Println(request, w.Code)
	}
	// Output:
	// OPTIONS /a 204
	// OPTIONS /a 204
	// PUT /a 404
	// PUT /a 429
	// GET /healthz 404
}

// A handler that says how many searches are left today.
func ExampleWithVerdict() {
	limiter := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 10, Window: 24 * time.Hour}))
	search := httplimit.Middleware(limiter, httplimit.WithVerdict())(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if a, ok := httplimit.VerdictOf(r.Context()); ok {
			fmt.Fprintf(w, "searches left: %d of %d", a.Decision.Remaining, a.Decision.Limit)
		}
	}))

	w := httptest.NewRecorder()
	search.ServeHTTP(w, httptest.NewRequest("GET", "/search?q=gopher", nil))
	fmt.Println(w.Body)
	// Output: searches left: 9 of 10
}

// Each request counts for its user and for the user's organisation. The handler says how many
// tokens it has cost.
func ExampleWithAlso() {
	users := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 1000, Window: 24 * time.Hour, Start: ratelimit.StartOnFirstEvent}))
	orgs := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 5000, Window: 24 * time.Hour, Start: ratelimit.StartOnFirstEvent}))
	handler := httplimit.Middleware(users, httplimit.WithKey(key.Header("X-User")), httplimit.WithPolicyName("user"),
		httplimit.WithAlso(orgs, key.Header("X-Org"), "org"),
		httplimit.WithCost(func(*http.Request) int { return 300 }), // an estimate
		httplimit.WithSettleAtEnd(httplimit.ByCost),
	)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { httplimit.Cost(r.Context(), 120) }))

	for _, user := range []string{"ann", "ann", "bob"} {
		w, r := httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil)
		r.Header.Set("X-User", user)
		r.Header.Set("X-Org", "acme")
		handler.ServeHTTP(w, r)
		fmt.Println(user, w.Header().Get("RateLimit-Policy"), w.Header().Get("RateLimit"))
	}
	// Output:
	// ann "user";q=1000;w=86400, "org";q=5000;w=86400 "user";r=700;t=86400
	// ann "user";q=1000;w=86400, "org";q=5000;w=86400 "user";r=580;t=86400
	// bob "user";q=1000;w=86400, "org";q=5000;w=86400 "user";r=700;t=86400
}

// A login form: the handler decides when it has read the form, by the name in it.
func ExampleGate() {
	limiter := ratelimit.Must(ratelimit.New(
		ratelimit.FixedWindow{Limit: 5, Window: 15 * time.Minute, Start: ratelimit.StartOnFirstEvent}))
	gate, err := httplimit.NewGate(limiter, httplimit.WithKey(func(r *http.Request) (string, error) {
		return strings.ToLower(r.PostFormValue("name")), nil
	}))
	if err != nil {
		log.Fatal(err)
	}
	login := func(w http.ResponseWriter, r *http.Request) {
		admission := gate.Admit(r)
		if !admission.Passed {
			admission.Refuse(w, r)
			return
		}
		admission.SetHeader(w.Header())
		admission.Done(http.StatusUnauthorized, 0)
		http.Error(w, "wrong password", http.StatusUnauthorized)
	}

	for i := range 6 {
		form := url.Values{"name": {"Ann"}, "password": {fmt.Sprint(i)}}
		r := httptest.NewRequest("POST", "/login", strings.NewReader(form.Encode()))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		w := httptest.NewRecorder()
		login(w, r)
		fmt.Println(w.Code, w.Header().Get("RateLimit"))
	}
	// Output:
	// 401 "default";r=4;t=900
	// 401 "default";r=3;t=900
	// 401 "default";r=2;t=900
	// 401 "default";r=1;t=900
	// 401 "default";r=0;t=900
	// 429 "default";r=0;t=900
}

// A GraphQL query: the handler finds out what it may cost at most, and afterwards what it has cost.
func ExampleGate_cost() {
	limiter := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(5000)}))
	type costKey struct{}
	gate, err := httplimit.NewGate(limiter,
		httplimit.WithCost(func(r *http.Request) int { return r.Context().Value(costKey{}).(int) }),
		httplimit.WithSettleAtEnd(httplimit.ByCost))
	if err != nil {
		log.Fatal(err)
	}
	graphQL := func(w http.ResponseWriter, r *http.Request) {
		query, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		r = r.WithContext(context.WithValue(r.Context(), costKey{}, mostCost(string(query))))
		admission := gate.Admit(r)
		defer admission.Done(http.StatusOK, 0)
		if !admission.Passed {
			admission.Refuse(w, r)
			return
		}
		admission.SetHeader(w.Header())
		answer, points := execute(admission.Context(), string(query))
		httplimit.Cost(admission.Context(), points)
		admission.Done(http.StatusOK, 0) // before a client that reads slowly gets the answer
		fmt.Fprint(w, answer)
	}

	for _, query := range []string{"{user{repos{name}}}", "{user{repos{name}}}", "{me}"} {
		w := httptest.NewRecorder()
		graphQL(w, httptest.NewRequest("POST", "/graphql", strings.NewReader(query)))
		fmt.Println(w.Code, w.Header().Get("RateLimit"))
	}
	// Output:
	// 200 "default";r=2000;t=2160
	// 200 "default";r=1500;t=2520
	// 200 "default";r=3000;t=1440
}

// mostCost returns how many points a query may cost. A real server parses it.
func mostCost(query string) int { return 1000 * strings.Count(query, "{") }

// execute returns the answer to a query, and how many points that has cost.
func execute(_ context.Context, query string) (answer string, points int) {
	return "{}", mostCost(query) / 6
}
