package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
)

// The example of the README.
func Example() {
	// Each API key may make 20 calls at once, and 10 a second in the long run.
	limiter := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10), Burst: 20}))
	http.HandleFunc("/search", func(w http.ResponseWriter, r *http.Request) {
		d, _ := limiter.Take(r.Context(), r.Header.Get("X-API-Key"), 1) // in memory, an error says that the client has left
		if !d.Allowed {
			w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(d.RetryAfter.Seconds()))))
			http.Error(w, "too many requests", http.StatusTooManyRequests)
			return
		}
		fmt.Fprintln(w, "found")
	})

	// Two callers make 25 calls each, all at once. This many are served:
	served, retryAfter := map[string]int{}, ""
	for range 25 {
		for _, key := range []string{"alice", "bob"} {
			w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/search", nil)
			r.Header.Set("X-API-Key", key)
			if http.DefaultServeMux.ServeHTTP(w, r); w.Code == http.StatusOK {
				served[key]++
			} else {
				retryAfter = w.Header().Get("Retry-After")
			}
		}
	}
	fmt.Println(served, "retry after", retryAfter)
	// Output: map[alice:20 bob:20] retry after 1
}

// stopped is a clock that stands still, so that the examples' output is the
// same each time. A program leaves WithClock out.
func stopped() *clock.Mock { return clock.NewMock() }

// The example of the package's documentation.
func ExampleLimiter_allow() {
	limiter := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)}))
	handler := func(w http.ResponseWriter, userID string) {
		if !limiter.Allow(userID) {
			http.Error(w, "too many requests", http.StatusTooManyRequests)
			return
		}
		fmt.Fprint(w, "found")
	}
	w := httptest.NewRecorder()
	handler(w, "alice")
	fmt.Println(w.Body)
	// Output: found
}

func ExampleLimiter_take() {
	limiter := ratelimit.Must(ratelimit.New(
		ratelimit.FixedWindow{Limit: 2, Window: time.Minute},
		ratelimit.WithClock(stopped()),
	))
	for range 3 {
		d, err := limiter.Take(context.Background(), "alice", 1)
		if err != nil {
			fmt.Println(err)
		}
		fmt.Printf("allowed %v, %d of %d left, retry after %v\n", d.Allowed, d.Remaining, d.Limit, d.RetryAfter)
	}
	// Output:
	// allowed true, 1 of 2 left, retry after 0s
	// allowed true, 0 of 2 left, retry after 0s
	// allowed false, 0 of 2 left, retry after 1m0s
}

func ExampleLimiter_wait() {
	limiter := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)}))
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()

	fmt.Println(limiter.Wait(ctx, "mail") == nil) // the bucket starts full
	err := limiter.Wait(ctx, "mail")              // the next token is a second away: fails at once
	fmt.Println(err != nil)
	// Output:
	// true
	// true
}

func ExampleLimiter_reserve() {
	limiter := ratelimit.Must(ratelimit.New(
		ratelimit.TokenBucket{Rate: ratelimit.PerSecond(4), Burst: 1},
		ratelimit.WithClock(stopped()),
	))
	for range 3 {
		r, _, err := limiter.Reserve(context.Background(), "backup", 1)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("may happen in", r.Delay())
	}
	// Output:
	// may happen in 0s
	// may happen in 250ms
	// may happen in 500ms
}

// A leaky bucket turns a burst into an even flow.
func ExampleLeakyBucket() {
	limiter := ratelimit.Must(ratelimit.New(
		ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(2), Capacity: 3},
		ratelimit.WithClock(stopped()),
	))
	for range 4 {
		d, _ := limiter.Take(context.Background(), "printer", 1)
		fmt.Println(d.Allowed, d.Delay)
	}
	// Output:
	// true 0s
	// true 500ms
	// true 1s
	// false 0s
}

// Ten a second, and a thousand a day.
func ExampleAll() {
	limit := ratelimit.All{ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)}, ratelimit.FixedWindow{Limit: 1000, Window: 24 * time.Hour}}
	limiter := ratelimit.Must(ratelimit.New(limit))
	fmt.Println(limiter.AllowN("alice", 10), limiter.Allow("alice"))
	// Output: true false
}

func ExampleInFlight() {
	limiter := ratelimit.Must(ratelimit.New(ratelimit.InFlight{Limit: 2, Timeout: time.Minute}))
	ctx := context.Background()
	export := func() (*ratelimit.Reservation, error) {
		r, d, err := limiter.Hold(ctx, "alice", 1)
		if r == nil {
			fmt.Printf("no more than %d exports at once\n", d.Limit)
		}
		return r, err
	}

	first, _ := export()
	_, _ = export()
	_, _ = export()
	if err := first.Release(ctx); err != nil {
		fmt.Println(err)
	}
	third, _ := export()
	fmt.Println("the third one runs:", third != nil)
	// Output:
	// no more than 2 exports at once
	// the third one runs: true
}

func ExampleParseRate() {
	rate, err := ratelimit.ParseRate("100/1m")
	fmt.Println(rate, err)
	_, err = ratelimit.ParseRate("100")
	fmt.Println(err)
	// Output:
	// 100/m <nil>
	// ratelimit: Rate is "100": it must be EVENTS/SPAN such as 10/s or 5/250ms, but has no slash
}

// Bounded memory: a flood of new keys evicts keys of the flood.
func ExampleMemoryStore() {
	store := &ratelimit.MemoryStore{MaxKeys: 1000}
	limiter := ratelimit.Must(ratelimit.New(
		ratelimit.FixedWindow{Limit: 3, Window: time.Minute, Start: ratelimit.StartOnFirstEvent},
		ratelimit.WithStore(store), ratelimit.WithName("api"),
	))
	limiter.AllowN("mallory", 3)
	for i := range 100_000 {
		limiter.Allow(fmt.Sprint("new key ", i))
	}
	fmt.Println(store.Len(), limiter.Allow("mallory"))
	// Output: 1000 false
}

// A month's quota that a restart does not forget: the program loads the states when it starts, and saves them
// when it ends.
func ExampleMemoryStore_Load() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	defer func(was string) { _ = os.Chdir(was) }(here())
	if err := os.Chdir(dir); err != nil {
		log.Fatal(err)
	}

	for range 2 { // two runs of a program
		store := new(ratelimit.MemoryStore)
		if err := store.Load("limits.state"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			log.Print(err) // the store is empty
		}
		limiter := ratelimit.Must(ratelimit.New(
			ratelimit.CalendarWindow{Limit: 10_000, Every: ratelimit.Month, Zone: "UTC"},
			ratelimit.WithStore(store), ratelimit.WithName("plan")))
		d, err := limiter.Take(context.Background(), "ann", 2500)
		fmt.Println(d.Remaining, err)
		if err := store.Save("limits.state"); err != nil {
			log.Print(err)
		}
	}
	// Output:
	// 7500 <nil>
	// 5000 <nil>
}

func here() string {
	dir, err := os.Getwd()
	if err != nil {
		log.Fatal(err)
	}
	return dir
}

// Plans of customers: one without a limit, one that is suspended, and the limiter's own.
func ExampleWithLimits_plans() {
	plans := map[string]ratelimit.Algorithm{"enterprise": ratelimit.Unlimited{}, "late payer": ratelimit.Blocked{}}
	limiter := ratelimit.Must(ratelimit.New(
		ratelimit.TokenBucket{Rate: ratelimit.PerMinute(60)},
		ratelimit.WithLimits(func(_ context.Context, customer string) (ratelimit.Algorithm, error) {
			return plans[customer], nil // nil means 60 a minute
		}),
	))
	for _, customer := range []string{"enterprise", "late payer", "hobbyist"} {
		fmt.Println(customer, limiter.AllowN(customer, 1000), limiter.Allow(customer))
	}
	// Output:
	// enterprise true true
	// late payer false false
	// hobbyist false true
}

// A new address that sends mail warms up: it may send 50 mails on its first day, and twice as many
// each day, until it may send as many as the others.
func ExampleWithLimits_ramp() {
	const day = 24 * time.Hour
	clk := stopped() // clock.New() in a program
	since := map[string]time.Time{"192.0.2.1": clk.Now()}
	daily := ratelimit.FixedWindow{Limit: 10_000, Window: day}
	limiter := ratelimit.Must(ratelimit.New(daily, ratelimit.WithClock(clk),
		ratelimit.WithLimits(func(_ context.Context, address string) (ratelimit.Algorithm, error) {
			limit := 50
			for d := day; d <= clk.Since(since[address]) && limit < daily.Limit; d += day {
				limit *= 2
			}
			return ratelimit.FixedWindow{Limit: min(limit, daily.Limit), Window: day}, nil
		}),
	))
	for range 10 {
		sent := 0
		for limiter.Allow("192.0.2.1") {
			sent++
		}
		fmt.Print(sent, " ")
		clk.Add(day)
	}
	// Output: 50 100 200 400 800 1600 3200 6400 10000 10000
}

// A program that reads messages in batches decides on the senders of a batch at once.
func ExampleLimiter_TakeEach() {
	limiter := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(2)}, ratelimit.WithClock(stopped())))
	var decisions []ratelimit.Decision
	for _, senders := range [][]string{{"alice", "bob", "alice"}, {"alice", "carol"}} {
		var err error
		decisions, err = limiter.TakeEach(context.Background(), senders, 1, decisions[:0])
		if err != nil {
			fmt.Println(err) // the store failed for some senders, and the failure policy decided
		}
		for i, sender := range senders {
			fmt.Println(sender, decisions[i].Allowed, decisions[i].Remaining)
		}
	}
	// Output:
	// alice true 1
	// bob true 1
	// alice true 0
	// alice false 0
	// carol true 1
}

// An import takes as many rows as the quota of the customer has left, and says when it goes on.
func ExampleLimiter_TakeUpTo() {
	limiter := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 500, Window: time.Hour}, ratelimit.WithClock(stopped())))
	for rows := 1200; rows > 0; {
		granted, d, err := limiter.TakeUpTo(context.Background(), "alice", min(rows, 300))
		if err != nil {
			fmt.Println(err) // the store failed, and the failure policy decided
		}
		if granted == 0 {
			fmt.Println(rows, "rows are left for later:", d.RetryAfter)
			return
		}
		rows -= granted
		fmt.Println(granted, "rows were imported")
	}
	// Output:
	// 300 rows were imported
	// 200 rows were imported
	// 700 rows are left for later: 1h0m0s
}

func ExampleLimiter_Hold() {
	ctx, leave := context.WithCancel(context.Background())
	user := "alice"
	callModel := func(context.Context) (used int, err error) {
		leave() // the client does not wait for the end
		return 250, nil
	}

	tokens := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerMinute(10_000)}))
	hold, d, err := tokens.Hold(ctx, user, 1_000) // the most that the call may use
	if !d.Allowed {
		fmt.Println(err, d.RetryAfter)
		return
	}
	used, failure := callModel(ctx) // used is the cost, even of a call that fails: then it is usually 0
	// ctx ends if the client leaves. The tokens must be settled all the same.
	d, err = hold.Settle(context.WithoutCancel(ctx), used) // if used is 250, d.Remaining is 9,750
	fmt.Println(d.Remaining, err, failure)
	// Output: 9750 <nil> <nil>
}

// A web process holds, and a worker settles. If the job gets lost, the tokens come back after an hour.
func ExampleLimiter_Resume() {
	ctx := context.Background()
	tokens, user := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerMinute(10_000)})), "ann"

	hold, d, err := tokens.Hold(ctx, user, 1_000, ratelimit.HoldFor(time.Hour), ratelimit.GiveBack())
	if err != nil || !d.Allowed {
		return // err, or d.RetryAfter
	}
	token := hold.Token() // put it into the queue, with the job

	work := func(used int) error {
		hold, err := tokens.Resume(ctx, user, token)
		if err != nil {
			return err
		}
		_, err = hold.Settle(ctx, used)
		return err
	}
	fmt.Println(work(250))
	d, err = tokens.Peek(ctx, user)
	fmt.Println(d.Remaining, err)
	// Output:
	// <nil>
	// 9750 <nil>
}

// A login costs nothing if it succeeds. Five failures within an hour block the user for a while.
func ExampleLimiter_Charge() {
	ctx := context.Background()
	clk := clock.NewMock()
	failures := ratelimit.Must(ratelimit.New(ratelimit.SlidingLog{Limit: 5, Window: time.Hour}, ratelimit.WithClock(clk)))
	for _, password := range []string{"1234", "letmein", "correct", "12345", "qwerty", "secret", "correct"} {
		d, err := failures.Peek(ctx, "alice")
		if err != nil {
			log.Fatal(err)
		}
		if !d.Allowed {
			fmt.Println("try again in", d.RetryAfter)
			break
		}
		if password == "correct" {
			fmt.Println("welcome;", d.Remaining, "more failures are allowed")
			continue
		}
		if _, err := failures.Charge(ctx, "alice", 1); err != nil {
			log.Fatal(err)
		}
		clk.Add(time.Minute)
	}
	// Output:
	// welcome; 3 more failures are allowed
	// try again in 55m0s
}

// A request belongs to a user, an organisation and the service: it is taken from all, or none.
func ExampleTakeAll() {
	limiter := func(n int) ratelimit.Limiter {
		return ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: n, Window: time.Hour, Start: ratelimit.StartOnFirstEvent}))
	}
	users, orgs, service := limiter(2), limiter(3), limiter(100)
	ctx, org := context.Background(), "acme"
	for _, user := range []string{"ann", "ann", "ann", "bob", "bob"} {
		d, err := ratelimit.TakeAll(ctx, 1,
			ratelimit.For(users, user), ratelimit.For(orgs, org), ratelimit.For(service, ""))
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(user, d.Allowed, d.Remaining, []string{"user", "organisation", "service"}[d.Part])
	}
	d, err := users.Peek(ctx, "bob")
	fmt.Println("bob has", d.Remaining, err)
	// Output:
	// ann true 1 user
	// ann true 0 user
	// ann false 0 user
	// bob true 0 organisation
	// bob false 0 organisation
	// bob has 1 <nil>
}

// To wait until several keys grant, ask again when the one that refuses for longest may grant.
func ExampleTakeAll_wait() {
	limiter := func(r ratelimit.Rate) ratelimit.Limiter {
		return ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: r, Burst: 2}))
	}
	users, service := limiter(ratelimit.PerSecond(100)), limiter(ratelimit.PerSecond(1000))
	wait := func(ctx context.Context, user string) error {
		for {
			d, err := ratelimit.TakeAll(ctx, 1, ratelimit.For(users, user), ratelimit.For(service, ""))
			switch {
			case err != nil || d.Allowed:
				return err
			case d.RetryAfter == ratelimit.Never:
				return ratelimit.ErrNever
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(d.RetryAfter):
			}
		}
	}
	for range 4 {
		fmt.Println(wait(context.Background(), "ann"))
	}
	// Output:
	// <nil>
	// <nil>
	// <nil>
	// <nil>
}

// A call of a language model counts as one request, and as tokens and cents that are estimated
// before and known afterwards.
func ExampleHoldAll() {
	limiter := func(n int) ratelimit.Limiter {
		return ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: n, Window: time.Hour, Start: ratelimit.StartOnFirstEvent}))
	}
	requests, tokens, cents := limiter(60), limiter(100_000), limiter(500)
	ctx, user, org := context.Background(), "ann", "acme"

	hold, d, err := ratelimit.HoldAll(ctx, 1, ratelimit.For(requests, user),
		ratelimit.For(tokens, user).N(1200), ratelimit.For(cents, org).N(3))
	if !d.Allowed {
		fmt.Println(err, d.Part, d.RetryAfter) // which of them refuses, and for how long
		return
	}
	_, err = hold.Settle(context.WithoutCancel(ctx), 1, 830, 2) // even if the client has left

	for _, b := range []ratelimit.Bound{ratelimit.For(requests, user), ratelimit.For(tokens, user), ratelimit.For(cents, org)} {
		d, _ := b.Limiter().Peek(ctx, b.Key())
		fmt.Println(d.Remaining, "of", d.Limit)
	}
	fmt.Println(err)
	// Output:
	// 59 of 60
	// 99170 of 100000
	// 498 of 500
	// <nil>
}

// A selective limiter refuses some keys whatever their limit grants. It overrides all methods that
// grant events, so that none passes it.
type selective struct {
	ratelimit.Limiter
	refuses func(key string) bool
}

var refused = ratelimit.Decision{RetryAfter: ratelimit.Never}

func (l selective) Allow(key string) bool { return l.AllowN(key, 1) }

func (l selective) AllowN(key string, n int) bool {
	return !l.refuses(key) && l.Limiter.AllowN(key, n)
}

func (l selective) Take(ctx context.Context, key string, n int) (ratelimit.Decision, error) {
	if l.refuses(key) {
		return refused, nil
	}
	return l.Limiter.Take(ctx, key, n)
}

func (l selective) TakeUpTo(ctx context.Context, key string, n int) (int, ratelimit.Decision, error) {
	if l.refuses(key) {
		return 0, refused, nil
	}
	return l.Limiter.TakeUpTo(ctx, key, n)
}

func (l selective) TakeEach(ctx context.Context, keys []string, n int, out []ratelimit.Decision) ([]ratelimit.Decision, error) {
	var errs []error
	for _, key := range keys {
		d, err := l.Take(ctx, key, n)
		out, errs = append(out, d), append(errs, err)
	}
	return out, errors.Join(errs...)
}

func (l selective) Wait(ctx context.Context, key string) error { return l.WaitN(ctx, key, 1) }

func (l selective) WaitN(ctx context.Context, key string, n int) error {
	if l.refuses(key) {
		return ratelimit.ErrNever
	}
	return l.Limiter.WaitN(ctx, key, n)
}

func (l selective) Reserve(ctx context.Context, key string, n int, opts ...ratelimit.ReserveOption) (*ratelimit.Reservation, ratelimit.Decision, error) {
	if l.refuses(key) {
		return nil, refused, nil
	}
	return l.Limiter.Reserve(ctx, key, n, opts...)
}

func (l selective) Hold(ctx context.Context, key string, n int, opts ...ratelimit.HoldOption) (*ratelimit.Reservation, ratelimit.Decision, error) {
	if l.refuses(key) {
		return nil, refused, nil
	}
	return l.Limiter.Hold(ctx, key, n, opts...)
}

// A limiter of one's own embeds another, because the interface may gain methods.
func ExampleLimiter_wrapper() {
	limiter := selective{
		Limiter: ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerMinute(60)})),
		refuses: func(key string) bool { return key == "mallory" },
	}
	d, err := ratelimit.TakeAll(context.Background(), 1, ratelimit.For(limiter, "alice"), ratelimit.For(limiter, "mallory"))
	fmt.Println(d.Allowed, err, limiter.Allow("alice"))
	fmt.Println("limit:", limiter.Describe().Algorithm)
	// Output:
	// false <nil> true
	// limit: 60/m
}

// The code of docs/testing.md.

func Example_testingAHandler() {
	clk := ratelimittest.NewClock(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	limiter := ratelimit.Must(ratelimit.New(
		ratelimit.FixedWindow{Limit: 2, Window: time.Minute},
		ratelimit.WithClock(clk),
	))
	handler := httplimit.Middleware(limiter)(http.NotFoundHandler())

	serve := func() *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		return w
	}

	serve()
	serve()
	refused := serve()
	fmt.Println(refused.Code, refused.Header().Get("Retry-After"))

	wait, _ := time.ParseDuration(refused.Header().Get("Retry-After") + "s")
	clk.Advance(wait)
	fmt.Println(serve().Code)
	// Output:
	// 429 60
	// 404
}

// unreachable is a database that fails.
type unreachable struct{ ratelimit.Database }

func (unreachable) Get(context.Context, string) ([]byte, error) {
	return nil, errors.New("connection refused")
}

func Example_testingAnOutage() {
	limiter := ratelimit.Must(ratelimit.New(
		ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)},
		ratelimit.WithStore(ratelimit.NewStore(unreachable{})), ratelimit.WithName("api"),
		ratelimit.WithFailurePolicy(ratelimit.FailClosed()),
	))
	d, err := limiter.Take(context.Background(), "alice", 1)
	fmt.Println(d.Allowed, d.Degraded, d.RetryAfter, err != nil)
	// Output: false true 1s true
}

// A plan of so many calls a month, in the time zone of its contract, and not more than ten a second.
func ExampleCalendarWindow() {
	monthly := ratelimit.CalendarWindow{Limit: 10_000, Every: ratelimit.Month, Zone: "Europe/London"}
	billing := ratelimit.CalendarWindow{Limit: 10_000, Every: ratelimit.Month, Start: 31} // or a shorter month's last day
	shift := ratelimit.CalendarWindow{Limit: 50, Every: ratelimit.Day, Zone: "Asia/Tokyo", Hour: 4}
	fmt.Println(billing)
	fmt.Println(shift)

	plan := ratelimit.All{ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)}, monthly}
	now := stopped()
	now.Set(time.Date(2026, 3, 29, 0, 30, 0, 0, time.UTC)) // half an hour before clocks go forward
	limiter := ratelimit.Must(ratelimit.New(plan, ratelimit.WithClock(now)))
	d, err := limiter.Take(context.Background(), "acme", 1)
	fmt.Println(d.ResetAfter, err) // to 1 April, 00:00 in London

	// Output:
	// 10,000 in each month of UTC, from the 31st
	// 50 in each day of Asia/Tokyo, from 04:00
	// 70h30m0s <nil>
}
