package rules_test

import (
	"context"
	"encoding/json"
	"errors"
	"log"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/httplimit/clientip"
	"github.com/ratelimit-go/ratelimit/httplimit/key"
	"github.com/ratelimit-go/ratelimit/rules"
)

// The tests in this file have the code of docs/recipes.md, and check what the page says of it.
// Other sentences of the page are laws of the library, which internal/laws has.

type batchKey struct{}

// asBatch returns a context of work that can wait.
func asBatch(ctx context.Context) context.Context { return context.WithValue(ctx, batchKey{}, true) }

func isBatch(ctx context.Context) bool { return ctx.Value(batchKey{}) != nil }

// prioritized returns a limiter that leaves a fifth of its burst to what is not batch work.
func prioritized() ratelimit.Limiter {
	rate := ratelimit.PerSecond(100)
	full, most := ratelimit.TokenBucket{Rate: rate, Burst: 100}, ratelimit.TokenBucket{Rate: rate, Burst: 80}
	limiter := ratelimit.Must(ratelimit.New(full,
		ratelimit.WithLimits(func(ctx context.Context, _ string) (ratelimit.Algorithm, error) {
			if isBatch(ctx) {
				return most, nil // leaves 20 of 100 to all others
			}
			return full, nil
		})))
	return limiter
}

// TestPrioritiesAtSaturation: important calls get all they ask for up to the rate, and the others
// get the rest of it.
func TestPrioritiesAtSaturation(t *testing.T) {
	for name, tt := range map[string]struct {
		important, others int // calls in each hundredth of a second, of which the rate grants one
		denied            bool
		rest              int // of the rate, in percent
	}{
		"half important": {1, 5, false, 50}, // in every other hundredth
		"all important":  {2, 5, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := prioritized()
				granted := func(ctx context.Context, n int) (sum int) {
					for range n {
						d, err := l.Take(ctx, "k", 1)
						require.NoError(t, err)
						if d.Allowed {
							sum++
						}
					}
					return sum
				}
				const hundredths, burstLasts = 10_000, 100
				sum, denied := 0, 0
				for i := range hundredths {
					important := tt.important
					if !tt.denied && i%2 == 0 {
						important = 0
					}
					got := granted(asBatch(t.Context()), tt.others)
					if i >= burstLasts {
						sum += got
					}
					denied += important - granted(t.Context(), important)
					time.Sleep(10 * time.Millisecond)
				}
				assert.Equal(t, tt.denied, denied > 0)
				assert.Equal(t, (hundredths-burstLasts)*tt.rest/100, sum)
			})
		})
	}
}

// A resolver finds the addresses of a fixed number of hosts.
type resolver struct {
	hosts int
	asked int
}

func (r *resolver) LookupHost(context.Context, string) ([]string, error) {
	r.asked++
	if r.hosts < 0 {
		return nil, errors.New("no such host")
	}
	return make([]string, r.hosts), nil
}

// sharing returns a limiter of a process that has its share of 100 events a second.
func sharing(resolver *resolver) ratelimit.Limiter {
	whole := ratelimit.TokenBucket{Rate: ratelimit.PerSecond(100)}
	share, err := rules.Cached(rules.LookupFunc(func(ctx context.Context, _ string) (ratelimit.Algorithm, error) {
		members, err := resolver.LookupHost(ctx, "search.default.svc.cluster.local") // a headless service
		if err != nil {
			return nil, err
		}
		return ratelimit.Share(whole, len(members)), nil
	}), rules.WithTTL(10*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	limiter := ratelimit.Must(ratelimit.New(ratelimit.Share(whole, 3),
		ratelimit.WithLimits(func(ctx context.Context, _ string) (ratelimit.Algorithm, error) {
			return share.Limit(ctx, "") // all keys have the same share
		})))
	return limiter
}

// TestElasticShare: the share of a process follows the number of processes, and stays as it was
// while the lookup fails. A bucket that shrinks pays once for what it has used beyond its new size.
func TestElasticShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		resolver := &resolver{hosts: -1}
		limiter := sharing(resolver)
		granted := func(seconds int) (sum int) {
			for range 1000 * seconds {
				if limiter.Allow("k") {
					sum++
				}
				time.Sleep(time.Millisecond)
			}
			return sum
		}
		// A count has what the bucket had when it began, and may begin before a share is looked up again.
		assert.InDelta(t, 33+333, granted(10), 5, "a third, before the first lookup succeeds")
		resolver.hosts = 4
		granted(2) // until it is looked up again
		assert.InDelta(t, 250, granted(10), 5)
		resolver.hosts = 2
		granted(11)
		assert.InDelta(t, 500, granted(10), 5)
		resolver.hosts = -1
		assert.InDelta(t, 1000, granted(20), 10, "while the lookup fails")
		resolver.hosts = 8
		granted(1)
		beyond := 50 - 12 // of the size of half, of that of an eighth
		assert.InDelta(t, 125-beyond, granted(10), 15)
		assert.InDelta(t, 125, granted(10), 3, "it has paid")
		d, err := limiter.Take(t.Context(), "k", 13)
		require.NoError(t, err)
		assert.Equal(t, ratelimit.Never, d.RetryAfter, "more than a share")
	})
}

// TestElasticShareLookups: the number of processes is looked up every ten seconds, for all keys at
// once.
func TestElasticShareLookups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		resolver := &resolver{hosts: 4}
		limiter := sharing(resolver)
		for range 600 {
			for _, key := range []string{"a", "b", "c"} {
				limiter.Allow(key)
			}
			time.Sleep(100 * time.Millisecond)
		}
		synctest.Wait()
		assert.Equal(t, 6, resolver.asked, "in a minute")
	})
}

// TestBanList: a banned key is refused at once, and has what it had when it is no longer banned.
func TestBanList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		banned := map[string]bool{}
		limit := ratelimit.FixedWindow{Limit: 10, Window: time.Hour}
		limiter := ratelimit.Must(ratelimit.New(limit,
			ratelimit.WithLimits(func(_ context.Context, key string) (ratelimit.Algorithm, error) {
				if banned[key] {
					return ratelimit.Blocked{}, nil
				}
				return nil, nil // the limit of New
			})))

		require.True(t, limiter.AllowN("mallory", 4))
		banned["mallory"] = true
		d, err := limiter.Take(t.Context(), "mallory", 1)
		require.NoError(t, err)
		assert.Equal(t, ratelimit.Decision{RetryAfter: ratelimit.Never}, ratelimit.Decision{Allowed: d.Allowed, RetryAfter: d.RetryAfter})
		assert.True(t, limiter.Allow("ann"))
		banned["mallory"] = false
		d, err = limiter.Peek(t.Context(), "mallory")
		require.NoError(t, err)
		assert.Equal(t, 6, d.Remaining)
	})
}

// Flags are those of a service of feature flags.
type flags map[string]int64

func (f flags) IntValue(_ context.Context, _ string, preset int64, customer string) (int64, error) {
	if value, ok := f[customer]; ok {
		return value, nil
	}
	return preset, nil
}

// TestFlags: a flag sets the limit of a customer, who keeps it for a minute.
func TestFlags(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		flags := flags{"ann": 600}
		lookup, err := rules.Cached(rules.LookupFunc(func(ctx context.Context, customer string) (ratelimit.Algorithm, error) {
			perMinute, err := flags.IntValue(ctx, "requests-per-minute", 60, customer)
			return ratelimit.TokenBucket{Rate: ratelimit.PerMinute(int(perMinute))}, err
		}))
		if err != nil {
			log.Fatal(err)
		}
		limiter := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerMinute(60)},
			ratelimit.WithLimits(lookup.Limit)))

		limitOf := func(customer string) int {
			d, err := limiter.Peek(t.Context(), customer)
			require.NoError(t, err)
			return d.Limit
		}
		assert.Equal(t, []int{600, 60}, []int{limitOf("ann"), limitOf("bob")})
		flags["bob"] = 90
		time.Sleep(time.Minute - 1)
		limitOf("bob")
		synctest.Wait()
		assert.Equal(t, 60, limitOf("bob"), "for a minute")
		time.Sleep(time.Nanosecond)
		limitOf("bob") // looks it up again, in the background
		synctest.Wait()
		assert.Equal(t, 90, limitOf("bob"))
	})
}

// TestIPv6Ladder: a client that changes its address within a network is limited by its /64, and one
// that has many of these by its /48. A request that one of them refuses spends nothing of the other.
// An address of IPv4 is limited as a client.
func TestIPv6Ladder(t *testing.T) {
	clients := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 10, Window: 1000 * time.Hour}))
	networks := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 30, Window: 1000 * time.Hour}))
	limit := httplimit.Middleware(clients,
		httplimit.WithKey(clientip.Of(clientip.IPv6Prefix(64))),
		httplimit.WithAlso(networks, clientip.Of(clientip.IPv6Prefix(48)), "networks"))

	handler := limit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	granted := func(addresses ...string) (sum int) {
		for range 20 {
			for _, address := range addresses {
				w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", http.NoBody)
				r.RemoteAddr = "[" + address + "]:1"
				handler.ServeHTTP(w, r)
				if w.Code == http.StatusOK {
					sum++
				}
			}
		}
		return sum
	}
	assert.Equal(t, 10, granted("2001:db8:1:1::1", "2001:db8:1:1::2"))
	assert.Equal(t, 20, granted("2001:db8:1:2::1", "2001:db8:1:3::1", "2001:db8:1:4::1"), "of 30 of the /48")
	assert.Equal(t, 10, granted("2001:db8:2:1::1"), "another /48")
	assert.Equal(t, 10, granted("192.0.2.1"))
	left := 0
	for _, client := range []string{"2001:db8:1:2::", "2001:db8:1:3::", "2001:db8:1:4::"} {
		d, err := clients.Peek(t.Context(), client+"/64")
		require.NoError(t, err)
		left += d.Remaining
	}
	assert.Equal(t, 30-20, left, "the /48 has refused 40, which have spent nothing")
}

// TestReserveForClasses: batch work leaves a fifth of the requests and of the tokens to the others,
// and what it is refused spends nothing of either.
func TestReserveForClasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reserving := func(perMinute int) ratelimit.Limiter {
			rate := ratelimit.PerMinute(perMinute)
			full := ratelimit.TokenBucket{Rate: rate, Burst: perMinute}
			most := ratelimit.TokenBucket{Rate: rate, Burst: perMinute * 4 / 5}
			return ratelimit.Must(ratelimit.New(full,
				ratelimit.WithLimits(func(ctx context.Context, _ string) (ratelimit.Algorithm, error) {
					if isBatch(ctx) {
						return most, nil
					}
					return full, nil
				})))
		}
		requests, tokens := reserving(100), reserving(20_000)
		hold := func(ctx context.Context, n int) bool {
			hold, d, err := ratelimit.HoldAll(ctx, 1, ratelimit.For(requests, "org"), ratelimit.For(tokens, "org").N(n))
			require.NoError(t, err)
			require.Equal(t, d.Allowed, hold != nil)
			return d.Allowed
		}
		batch := asBatch(t.Context())
		require.True(t, hold(batch, 15_000))
		assert.False(t, hold(batch, 1_500))
		d, err := requests.Peek(t.Context(), "org")
		require.NoError(t, err)
		assert.Equal(t, 99, d.Remaining, "the refused one has spent no request")
		assert.True(t, hold(t.Context(), 5_000), "of what is left to others")
		assert.False(t, hold(t.Context(), 1_000))
	})
}

type beyondKey struct{}

// beyondShare returns a context of calls that a tenant makes beyond its share.
func beyondShare(ctx context.Context) context.Context {
	return context.WithValue(ctx, beyondKey{}, true)
}

func isBeyondShare(ctx context.Context) bool { return ctx.Value(beyondKey{}) != nil }

// dividing returns a function that decides on a call of a tenant, one of four of a backend.
func dividing() func(ctx context.Context, tenant string) (ratelimit.Decision, error) {
	rate := ratelimit.PerSecond(100) // of the backend
	shares := ratelimit.Must(ratelimit.New(ratelimit.Share(ratelimit.TokenBucket{Rate: rate, Burst: 20}, 4)))
	full, rest := ratelimit.TokenBucket{Rate: rate, Burst: 25}, ratelimit.TokenBucket{Rate: rate, Burst: 5}
	backend := ratelimit.Must(ratelimit.New(full,
		ratelimit.WithLimits(func(ctx context.Context, _ string) (ratelimit.Algorithm, error) {
			if isBeyondShare(ctx) {
				return rest, nil // leaves 20 of 25: the bursts of all shares
			}
			return full, nil
		})))
	return func(ctx context.Context, tenant string) (ratelimit.Decision, error) {
		d, err := ratelimit.TakeAll(ctx, 1, ratelimit.For(shares, tenant), ratelimit.For(backend, ""))
		if err != nil || d.Allowed {
			return d, err
		}
		more, err := backend.Take(beyondShare(ctx), "", 1)
		if err != nil || more.Allowed {
			return more, err
		}
		return d, nil // RetryAfter is that of the tenant's share
	}
}

// TestFairShare: one tenant of four floods a backend. With a limiter of the backend alone, the
// others get nothing. With a share for each tenant, they get all that they ask for, although they
// use the bursts of their shares at the same time, and the flood gets the rest.
func TestFairShare(t *testing.T) {
	type take func(ctx context.Context, tenant string) (ratelimit.Decision, error)
	fair := func() take { return dividing() }
	plain := func() take {
		backend := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(100), Burst: 25}))
		return func(ctx context.Context, _ string) (ratelimit.Decision, error) { return backend.Take(ctx, "", 1) }
	}
	all := []string{"ann", "bob", "eve", "mallory"}
	others, flood := all[:3], all[3:]
	for name, tt := range map[string]struct {
		take     func() take
		flooding []string // each with 2,000 calls a second
		calm     []string // each with 20 calls a second, five at once
		want     map[string]int
	}{
		"one limiter": {plain, flood, others, map[string]int{"mallory": 25 + 999}},
		"shares":      {fair, flood, others, map[string]int{"ann": 200, "bob": 200, "eve": 200, "mallory": 410}},
		"all flood":   {fair, all, nil, map[string]int{"ann": 5 + 249, "bob": 5 + 249, "eve": 5 + 249, "mallory": 5 + 249}},
		"one alone":   {fair, flood, nil, map[string]int{"mallory": 5 + 999}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				take := tt.take()
				granted := make(map[string]int)
				call := func(tenants []string) {
					for _, tenant := range tenants {
						d, err := take(t.Context(), tenant)
						require.NoError(t, err)
						if d.Allowed {
							granted[tenant]++
						}
					}
				}
				for i := range 10 * 2000 { // ten seconds
					call(tt.flooding)
					if i%500 == 250 {
						for range 5 {
							call(tt.calm)
						}
					}
					time.Sleep(time.Second / 2000)
				}
				assert.Equal(t, tt.want, granted)
			})
		})
	}
}

// TestFairShare_RetryAfter: a tenant that is refused is told when its own share has room, which is
// a promise that no other tenant can break.
func TestFairShare_RetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		take := dividing()
		decide := func(tenant string) ratelimit.Decision {
			d, err := take(t.Context(), tenant)
			require.NoError(t, err)
			return d
		}
		for decide("mallory").Allowed {
		}
		retryAfter := decide("mallory").RetryAfter
		assert.Equal(t, time.Second/25, retryAfter)
		time.Sleep(retryAfter)
		for decide("ann").Allowed {
		}
		assert.True(t, decide("mallory").Allowed)
	})
}

type left struct {
	Limit     int       `json:"limit"`
	Remaining int       `json:"remaining"`
	Resets    time.Time `json:"resets"`
}

// usageOf returns a handler that tells a customer what is left of each limit.
func usageOf(limits map[string]ratelimit.Limiter, customerOf key.Func) http.HandlerFunc {
	usage := func(w http.ResponseWriter, r *http.Request) {
		customer, err := customerOf(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusUnauthorized)
			return
		}
		answer := make(map[string]left)
		for name, limiter := range limits {
			d, err := limiter.Peek(r.Context(), customer) // spends nothing
			if err != nil {
				http.Error(w, "usage is not known at present", http.StatusServiceUnavailable)
				return
			}
			answer[name] = left{d.Limit, d.Remaining, time.Now().Add(d.ResetAfter).UTC().Round(time.Second)}
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		_ = json.NewEncoder(w).Encode(answer)
	}
	return usage
}

// TestUsage: a customer sees what the limits in front of her requests have left, as often as she
// asks, and nothing of it is spent. While her limit is not known, the page claims nothing.
func TestUsage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var failure error // of the lookup of a customer's month
		customerOf := key.Header("X-API-Key")
		minute := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerMinute(60)}))
		month := ratelimit.Must(ratelimit.New(ratelimit.CalendarWindow{Limit: 10_000, Every: ratelimit.Month, Zone: "Europe/London"},
			ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return nil, failure })))
		mux := http.NewServeMux()
		limited := httplimit.Middleware(minute, httplimit.WithKey(customerOf), httplimit.WithAlso(month, customerOf, "month"))
		mux.Handle("GET /search", limited(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
		limits := map[string]ratelimit.Limiter{"minute": minute, "month": month}
		mux.Handle("GET /usage", usageOf(limits, customerOf))

		ask := func(path, customer string) *httptest.ResponseRecorder {
			w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, path, http.NoBody)
			if customer != "" {
				r.Header.Set("X-API-Key", customer)
			}
			mux.ServeHTTP(w, r)
			return w
		}
		for range 3 {
			require.Equal(t, http.StatusOK, ask("/search", "ann").Code)
		}
		for range 100 {
			assert.JSONEq(t, `{
				"minute": {"limit": 60, "remaining": 57, "resets": "2000-01-01T00:00:03Z"},
				"month": {"limit": 10000, "remaining": 9997, "resets": "2000-02-01T00:00:00Z"}
			}`, ask("/usage", "ann").Body.String())
		}
		assert.Contains(t, ask("/usage", "bob").Body.String(), `"remaining":10000`)
		assert.Equal(t, http.StatusUnauthorized, ask("/usage", "").Code)
		failure = errors.New("the database is away")
		assert.Equal(t, http.StatusServiceUnavailable, ask("/usage", "ann").Code)
	})
}

// queue returns the limit of a queue of jobs, for one of the processes that work on it.
func queue(store ratelimit.Store) ratelimit.Limiter {
	slots := ratelimit.Must(ratelimit.New(ratelimit.All{
		ratelimit.InFlight{Limit: 10, Timeout: time.Minute},
		ratelimit.TokenBucket{Rate: ratelimit.PerSecond(5)},
	}, ratelimit.WithStore(store), ratelimit.WithName("jobs"), ratelimit.WithFailurePolicy(ratelimit.FailClosed())))
	return slots
}

// work does a job when there is a slot for it.
func work(ctx context.Context, slots ratelimit.Limiter, job func(context.Context) error) error {
	slot, _, err := slots.Hold(ctx, "", 1, ratelimit.Waiting())
	if err != nil {
		return err // give the job back to the queue
	}
	defer func() { _ = slot.Release(context.WithoutCancel(ctx)) }()
	working, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go func() {
		for working.Err() == nil {
			select {
			case <-working.Done():
			case <-time.After(20 * time.Second):
				if err := slot.Extend(working, time.Minute); errors.Is(err, ratelimit.ErrEnded) {
					stop(err) // another job may have the slot by now
				}
			}
		}
	}()
	return job(working)
}

// TestWorkers: ten jobs run at once in all processes together, and five begin in a second, however
// long a job takes.
func TestWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := new(ratelimit.MemoryStore)
		var running, most, done atomic.Int64
		var jobs sync.WaitGroup
		start := time.Now()
		for i := range 30 {
			slots := queue(store) // of a process of its own
			jobs.Go(func() {
				assert.NoError(t, work(t.Context(), slots, func(ctx context.Context) error {
					if now := running.Add(1); now > most.Load() {
						most.Store(now)
					}
					time.Sleep(10*time.Minute + time.Duration(i)*time.Millisecond)
					running.Add(-1)
					done.Add(1)
					return ctx.Err()
				}))
			})
		}
		time.Sleep(999 * time.Millisecond)
		synctest.Wait()
		assert.EqualValues(t, 5+4, running.Load(), "the burst, and five a second")
		jobs.Wait()
		assert.EqualValues(t, 30, done.Load())
		assert.EqualValues(t, 10, most.Load())
		assert.Less(t, time.Since(start), 31*time.Minute)
	})
}

// TestWorkers_Crash: a worker that crashes costs its slot for a minute. A worker whose slot has
// ended learns it within 20 seconds.
func TestWorkers_Crash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := new(ratelimit.MemoryStore)
		slots := queue(store)
		for range 10 {
			_, _, err := slots.Hold(t.Context(), "", 1, ratelimit.Waiting())
			require.NoError(t, err)
		}
		crashed := time.Now() // all ten, of which the first five began a second ago
		require.NoError(t, work(t.Context(), queue(store), func(context.Context) error {
			assert.Equal(t, 59*time.Second, time.Since(crashed))
			return nil
		}))

		began := time.Now()
		err := work(t.Context(), slots, func(ctx context.Context) error {
			require.NoError(t, slots.Reset(ctx, ""))
			<-ctx.Done()
			return context.Cause(ctx)
		})
		require.ErrorIs(t, err, ratelimit.ErrEnded)
		assert.Equal(t, 20*time.Second, time.Since(began))
	})
}
