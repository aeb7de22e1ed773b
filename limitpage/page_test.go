package limitpage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/redisstore"
)

// added returns a limiter that page observes and shows.
func added(t *testing.T, page *Page, name string, alg ratelimit.Algorithm, opts ...ratelimit.Option) ratelimit.Limiter {
	t.Helper()
	l, err := ratelimit.New(alg, append([]ratelimit.Option{ratelimit.WithName(name), ratelimit.WithObserver(page.Observe)}, opts...)...)
	require.NoError(t, err)
	require.NoError(t, page.Add(l))
	return l
}

// get sends a request to the page, and decodes the answer.
func get[T any](t *testing.T, page *Page, query string) (answer T) {
	t.Helper()
	w := httptest.NewRecorder()
	page.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://localhost/debug/ratelimit/?format=json"+query, http.NoBody))
	require.Equal(t, http.StatusOK, w.Code, w.Body)
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &answer))
	return answer
}

// A sent is the part of a report that clients see, as they decode it.
type sent struct {
	Now      int64
	Limiters []limiterReport
	Stores   []storeSent
	Ignored  uint64
}

type storeSent struct {
	Limiters []string
	Memory   *memoryReport
	Redis    *struct {
		Failures, Timeouts, OtherErrors uint64
		LatencyBounds                   []float64
		Latency                         []uint64
		Breakers                        map[string]string
		Outages                         map[string]redisOutage
	}
}

func TestDecisionsOfEachSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		page := New()
		l := added(t, page, "api", ratelimit.FixedWindow{Limit: 3, Window: time.Hour, Start: ratelimit.StartOnFirstEvent})
		begin := time.Now().Unix()
		for range 2 {
			l.Allow("k")
		}
		time.Sleep(2 * time.Second)
		for range 4 {
			l.Allow("k")
		}
		_, err := l.Take(t.Context(), "other", 2)
		require.NoError(t, err)
		r := get[sent](t, page, "").Limiters[0]
		none := []uint64{0, 0}
		assert.Equal(t, seconds{begin, []uint64{2, 0}, none, none, none}, r.Seconds, "the current second is not whole")
		time.Sleep(time.Second)
		r = get[sent](t, page, fmt.Sprintf("&since=%d", begin+2)).Limiters[0]
		assert.Equal(t, seconds{begin + 2, []uint64{2}, []uint64{3}, []uint64{0}, []uint64{0}}, r.Seconds, "only what the client lacks")
		assert.Equal(t, []uint64{4, 3, 5, 3}, []uint64{r.Granted, r.Denied, r.EventsGranted, r.EventsDenied})

		time.Sleep(400 * time.Second)
		r = get[sent](t, page, "").Limiters[0]
		assert.Equal(t, begin+403-history, r.Seconds.From)
		assert.Equal(t, make([]uint64, history), r.Seconds.Granted, "nothing happened in the last five minutes")
		assert.Equal(t, uint64(4), r.Granted)
		assert.Empty(t, get[sent](t, page, "&since=9999999999999").Limiters[0].Seconds.Granted)
	})
}

// TestSecondsEndAtTheTime: all limiters of a report have the same seconds, even if decisions are
// counted in the next one before the report is complete.
func TestSecondsEndAtTheTime(t *testing.T) {
	var tl tally
	tl.begin(0)
	for s := range 400 * time.Second / time.Second {
		tl.add(s*time.Second, &ratelimit.Observation{Outcome: ratelimit.Granted})
	}
	tl.add(400*time.Second, &ratelimit.Observation{Outcome: ratelimit.Granted})
	from, of := tl.since(0, 399*time.Second+time.Second/2)
	assert.Equal(t, int64(399), from+int64(len(of)))
	assert.GreaterOrEqual(t, len(of), history-1)
	for i, c := range of {
		assert.Equal(t, uint64(1), c.granted, i)
	}
	_, of = tl.since(from, time.Second)
	assert.Empty(t, of, "a report that took minutes")
}

// TestSecondsAddUp: whatever goroutines count at once, and whoever looks meanwhile, no decision
// is lost or counted in two seconds.
func TestSecondsAddUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		page := New()
		var all sync.WaitGroup
		for i := range 4 {
			all.Go(func() {
				r := rand.New(rand.NewPCG(1, uint64(i)))
				outcomes := []ratelimit.Outcome{ratelimit.Granted, ratelimit.Denied, ratelimit.Failed}
				for n := range 2000 {
					page.Observe(context.Background(), ratelimit.Observation{Limiter: "api", Outcome: outcomes[n%3]})
					time.Sleep(time.Duration(r.IntN(200)) * time.Millisecond)
				}
			})
		}
		var total counts
		for since := int64(0); total != (counts{2668, 2668, 2664, 2664}); {
			time.Sleep(7 * time.Second)
			s := get[sent](t, page, fmt.Sprintf("&since=%d", since)).Limiters[0].Seconds
			if since != 0 {
				require.Equal(t, since, s.From)
			}
			since = s.From + int64(len(s.Granted))
			for i := range s.Granted {
				total.granted += s.Granted[i]
				total.denied += s.Denied[i]
				total.degraded += s.Degraded[i]
				total.refused += s.Refused[i]
			}
			require.LessOrEqual(t, total.granted, uint64(2668))
			require.Less(t, time.Since(page.started), time.Hour, "decisions are lost")
		}
		all.Wait()
	})
}

// TestTakeUpToIsCounted: of a TakeUpTo, the events that it takes are granted, and if it takes none,
// one is denied, also if it asks for all that remain.
func TestTakeUpToIsCounted(t *testing.T) {
	page := New()
	l := added(t, page, "api", ratelimit.FixedWindow{Limit: 5, Window: time.Hour})
	for _, want := range []int{5, 0, 0, 0} {
		granted, _, err := l.TakeUpTo(t.Context(), "k", math.MaxInt)
		require.NoError(t, err)
		require.Equal(t, want, granted)
	}
	r := get[sent](t, page, "").Limiters[0]
	assert.Equal(t, []uint64{1, 3, 5, 3}, []uint64{r.Granted, r.Denied, r.EventsGranted, r.EventsDenied})
}

func TestEachOutcomeIsCounted(t *testing.T) {
	for outcome, want := range map[ratelimit.Outcome]limiterReport{
		ratelimit.Granted:   {Granted: 1, EventsGranted: 2},
		ratelimit.Delayed:   {Granted: 1, EventsGranted: 2, Delayed: 1},
		ratelimit.Denied:    {Denied: 1, EventsDenied: 3},
		ratelimit.Withheld:  {Withheld: 1},
		ratelimit.Abandoned: {},
		ratelimit.Counted:   {},
		ratelimit.Failed:    {Degraded: 1, Refused: 1},
	} {
		page := New()
		page.Observe(t.Context(), ratelimit.Observation{Limiter: "api", N: 3, Granted: 2, Outcome: outcome})
		got := get[sent](t, page, "").Limiters[0]
		want.Name, want.Seconds, want.Top, want.Used, want.Outage = "api", got.Seconds, got.Top, got.Used, got.Outage
		assert.Equal(t, want, got, outcome)
	}
	page := New()
	page.Observe(t.Context(), ratelimit.Observation{Outcome: ratelimit.Failed, Decision: ratelimit.Decision{Allowed: true, Degraded: true}})
	got := get[sent](t, page, "").Limiters[0]
	assert.Equal(t, uint64(1), got.Degraded)
	assert.Zero(t, got.Refused)
}

// TestOutage: since when decisions fail, and why, and when it was over.
func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		page := New()
		begin := time.Now()
		observe := func(outcome ratelimit.Outcome, err error) {
			page.Observe(t.Context(), ratelimit.Observation{Limiter: "api", Outcome: outcome, Err: err})
		}
		type report struct {
			since, last time.Duration
			cause       string
			over        bool
		}
		outage := func() *report {
			o := get[sent](t, page, "").Limiters[0].Outage
			if o == nil {
				return nil
			}
			return &report{time.UnixMilli(o.Since).Sub(begin), time.UnixMilli(o.Last).Sub(begin), o.Cause, o.Over}
		}
		observe(ratelimit.Granted, nil)
		assert.Nil(t, outage())
		observe(ratelimit.Failed, errors.New("no route"))
		time.Sleep(time.Minute)
		assert.Equal(t, &report{0, 0, "no route", false}, outage(), "nobody has asked since")
		observe(ratelimit.Failed, errors.New("connection refused"))
		observe(ratelimit.Denied, nil)
		assert.Equal(t, &report{0, time.Minute, "connection refused", false}, outage(), "it may fail at times only")
		time.Sleep(11 * time.Second)
		assert.Equal(t, &report{0, time.Minute, "connection refused", true}, outage())
		observe(ratelimit.Failed, nil)
		assert.Equal(t, &report{71 * time.Second, 71 * time.Second, "ratelimit: the store is full", false}, outage())
		time.Sleep(5*time.Minute + 1)
		assert.Nil(t, outage())
		observe(ratelimit.Failed, errors.New("no route"))
		assert.Equal(t, 371*time.Second, outage().since.Truncate(time.Second), "another one")

		page = New(WithHashedKeys(nil))
		observe(ratelimit.Failed, errors.New("no limit for ann"))
		assert.NotContains(t, outage().cause, "ann")
	})
}

// TestPartsThatDeny: a key says which part of an All has denied it, and since when it is denied.
func TestPartsThatDeny(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		page := New()
		l := added(t, page, "api", ratelimit.All{
			ratelimit.FixedWindow{Limit: 5, Window: time.Hour},
			ratelimit.FixedWindow{Limit: 2, Window: 24 * time.Hour},
		})
		begin := time.Now()
		l.AllowN("k", 3)
		top := get[sent](t, page, "").Limiters[0].Top[0]
		assert.Equal(t, "2 in each day", top.PartLimit)
		time.Sleep(time.Minute / 2)
		l.AllowN("k", 6)
		top = get[sent](t, page, "").Limiters[0].Top[0]
		assert.Equal(t, "5 in each hour", top.PartLimit)
		assert.Equal(t, begin.UnixMilli(), top.Since)
	})
}

func TestObserveAllocatesNothing(t *testing.T) {
	page := New()
	l := added(t, page, "api", ratelimit.FixedWindow{Limit: 1, Window: time.Hour})
	l.Allow("k")
	l.Allow("k")
	assert.Zero(t, testing.AllocsPerRun(100, func() { l.Allow("k") }))
}

// BenchmarkAllow measures what the page costs a decision.
func BenchmarkAllow(b *testing.B) {
	for _, alg := range []ratelimit.Algorithm{
		ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1e9)},
		ratelimit.FixedWindow{Limit: 1, Window: 24 * time.Hour},
	} {
		for _, observer := range []string{"none", "page"} {
			b.Run(fmt.Sprintf("alg=%T/observer=%s", alg, observer), func(b *testing.B) {
				opts := []ratelimit.Option{ratelimit.WithName("api")}
				if observer == "page" {
					opts = append(opts, ratelimit.WithObserver(New().Observe))
				}
				l := ratelimit.Must(ratelimit.New(alg, opts...))
				for b.Loop() {
					l.Allow("203.0.113.7")
				}
			})
		}
	}
}

func TestKeysDeniedMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		page := New()
		l := added(t, page, "api", ratelimit.FixedWindow{Limit: 1, Window: time.Hour, Start: ratelimit.StartOnFirstEvent})
		for _, key := range []string{"a", "b", "b", "b", "c", "c"} {
			l.Allow(key)
		}
		_, err := l.Take(t.Context(), "never", 2)
		require.NoError(t, err)
		require.ErrorIs(t, l.WaitN(t.Context(), "waits", 2), ratelimit.ErrNever)
		time.Sleep(time.Second)
		top := get[sent](t, page, "").Limiters[0].Top
		require.Len(t, top, 4)
		now := time.Now()
		assert.Equal(t, []string{"b", "c"}, []string{top[0].Key, top[1].Key})
		assert.InDelta(t, 2, top[0].Denied, 0.1, "it has faded for a second")
		assert.Equal(t, 1, top[0].N)
		assert.Equal(t, now.Add(-time.Second).UnixMilli(), top[0].At)
		assert.Equal(t, now.Add(time.Hour-time.Second).UnixMilli(), *top[0].Back)
		assert.Equal(t, "never", top[2].Key)
		assert.True(t, top[2].Never)
		assert.Nil(t, top[2].Back)
		assert.Equal(t, 2, top[2].N)
		assert.Equal(t, "waits", top[3].Key)
		assert.Nil(t, top[3].Back)
		assert.True(t, top[3].Never)
		time.Sleep(10 * time.Minute)
		assert.Empty(t, get[sent](t, page, "").Limiters[0].Top, "old denials fade")
	})
}

func TestKeysThatUseMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		page := New()
		l := added(t, page, "api", ratelimit.FixedWindow{Limit: 10, Window: time.Hour})
		l.AllowN("much", 9)
		l.AllowN("denied", 11)
		for range 3 {
			l.Allow("little")
		}
		_, err := l.Charge(t.Context(), "owes", 12)
		require.NoError(t, err)
		begin := time.Now().UnixMilli()
		time.Sleep(time.Second)
		l.AllowN("little", 2)
		used := get[sent](t, page, "").Limiters[0].Used
		require.Len(t, used, 3)
		for i, want := range []struct {
			key     string
			used    float64
			at      int64
			n       int
			comment string
		}{
			{"owes", 12, begin, 12, "a charge counts"},
			{"much", 9, begin, 9, ""},
			{"little", 5, begin + 1000, 2, "the latest request"},
		} {
			got := used[i]
			assert.Equal(t, want.key, got.Key)
			assert.InDelta(t, want.used, got.Used, 0.2, "%s: it has faded for a second", want.key)
			assert.Equal(t, []int64{begin, want.at, int64(want.n)}, []int64{got.Since, got.At, int64(got.N)}, want.comment)
		}
		assert.True(t, get[found](t, page, "&limiter=api&id="+used[0].ID).Verbatim, "each can be looked up")
		time.Sleep(10 * time.Minute)
		assert.Empty(t, get[sent](t, page, "").Limiters[0].Used, "old events fade")
	})
}

func TestAddRefusesMistakes(t *testing.T) {
	page := New()
	require.ErrorIs(t, page.Add(nil), ratelimit.ErrInvalid)
	require.ErrorContains(t, page.Add(nil), "limitpage: Add's limiter is nil")
	l := added(t, page, "api", ratelimit.Unlimited{})
	require.NoError(t, page.Add(l), "the same one again")
	err := page.Add(named(t, "api"))
	require.ErrorIs(t, err, ratelimit.ErrInvalid)
	assert.ErrorContains(t, err, `is "api": it must differ`)
	require.ErrorIs(t, New(nil).Add(l), ratelimit.ErrInvalid)
	require.ErrorContains(t, New(nil).Add(l), "limitpage: option 0 of New is nil")
	require.NoError(t, page.Add(odd{Limiter: named(t, "odd")}))
	require.ErrorIs(t, page.Add(odd{Limiter: named(t, "odd")}), ratelimit.ErrInvalid)

	for i := range mostLimiters + 10 {
		page.Observe(t.Context(), ratelimit.Observation{Limiter: fmt.Sprint(i)})
	}
	r := get[sent](t, page, "")
	assert.Len(t, r.Limiters, mostLimiters)
	assert.Equal(t, uint64(12), r.Ignored)
	err = page.Add(named(t, "late"))
	require.ErrorIs(t, err, ratelimit.ErrInvalid)
	assert.ErrorContains(t, err, "is 257: it must be at most 256")
}

// TestLimiterWithoutAlgorithm: the page does not know whether a limiter that hides its algorithm
// has one for each key.
func TestLimiterWithoutAlgorithm(t *testing.T) {
	page := New()
	require.NoError(t, page.Add(fakes.Hidden{Limiter: named(t, "hidden")}))
	assert.Equal(t, "unknown: the limiter does not tell it", get[sent](t, page, "").Limiters[0].Limit)
	assert.True(t, get[found](t, page, "&limiter=&key=k").Decision.Allowed)
}

func named(t *testing.T, name string) ratelimit.Limiter {
	t.Helper()
	l, err := ratelimit.New(ratelimit.Unlimited{}, ratelimit.WithName(name))
	require.NoError(t, err)
	return l
}

// An odd is a limiter that cannot be compared.
type odd struct {
	ratelimit.Limiter
	_ []int
}

func TestLimitersThatWereNotAdded(t *testing.T) {
	page := New()
	l := ratelimit.Must(ratelimit.New(ratelimit.Blocked{}, ratelimit.WithName("api"), ratelimit.WithObserver(page.Observe)))
	l.Allow("k")
	r := get[sent](t, page, "")
	assert.Equal(t, uint64(1), r.Limiters[0].Denied)
	assert.False(t, r.Limiters[0].Added)
	assert.Empty(t, r.Limiters[0].Limit)
	assert.Empty(t, r.Stores)
	require.NoError(t, page.Add(l))
	r = get[sent](t, page, "")
	assert.Equal(t, "blocked", r.Limiters[0].Limit)
	assert.Equal(t, uint64(1), r.Limiters[0].Denied, "what was seen before still counts")
}

// A conn is a connection to a Redis that is away.
type conn struct{}

func (conn) Do(_ context.Context, commands []redisstore.Command) []redisstore.Reply {
	replies := make([]redisstore.Reply, len(commands))
	for i := range replies {
		replies[i].Err = errors.New("connection refused")
	}
	return replies
}

func (conn) Server(string) (name string, known bool) { return "", true }
func (conn) OneServer() bool                         { return true }
func (conn) NoAnswer(string) error                   { return nil }
func (conn) Redial(context.Context, string)          {}

func TestStores(t *testing.T) {
	begun := time.Now().UnixMilli()
	page := New()
	store := &ratelimit.MemoryStore{MaxKeys: 1}
	alg := ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)}
	a := added(t, page, "a", alg, ratelimit.WithStore(store))
	added(t, page, "own", alg)
	b := added(t, page, "b", alg, ratelimit.WithStore(store))
	redis, err := redisstore.New(conn{})
	require.NoError(t, err)
	r := added(t, page, "redis", alg, ratelimit.WithStore(redis), ratelimit.WithFailureLog(nil))
	added(t, page, "other", alg, ratelimit.WithStore(struct{ ratelimit.Store }{store}))
	require.True(t, a.Allow("k"))
	require.True(t, b.Allow("k"))
	require.True(t, r.Allow("k"), "the default policy is FailOpen")

	got := get[sent](t, page, "")
	require.Len(t, got.Stores, 3)
	assert.Equal(t, []string{"a", "b"}, got.Stores[0].Limiters)
	assert.Equal(t, 1, got.Stores[0].Memory.Keys)
	assert.Equal(t, uint64(1), got.Stores[0].Memory.Evictions)
	assert.NotZero(t, got.Stores[0].Memory.Bytes)
	assert.Equal(t, []string{"own"}, got.Stores[1].Limiters)
	assert.Equal(t, uint64(1), got.Stores[2].Redis.Failures)
	assert.Equal(t, uint64(1), got.Stores[2].Redis.OtherErrors)
	assert.Equal(t, 0.00025, got.Stores[2].Redis.LatencyBounds[0])
	assert.Len(t, got.Stores[2].Redis.Latency, len(got.Stores[2].Redis.LatencyBounds)+1)
	assert.NotNil(t, got.Stores[2].Redis.Breakers)
	assert.Equal(t, "connection refused", got.Stores[2].Redis.Outages[""].Cause)
	since := got.Stores[2].Redis.Outages[""].Since
	assert.True(t, begun <= since && since <= got.Now, "%d to %d: %d", begun, got.Now, since)
	assert.Equal(t, 0, *got.Limiters[2].Store)
	assert.Equal(t, 2, *got.Limiters[3].Store)
	assert.Nil(t, got.Limiters[4].Store, "a store that the page does not know")
	assert.Equal(t, uint64(1), got.Limiters[3].Degraded)
}

// TestFieldsAreThoseOfTheLibrary fails for a new field of these structs until the page has it.
func TestFieldsAreThoseOfTheLibrary(t *testing.T) {
	for library, page := range map[any]any{
		ratelimit.MemoryStats{}: memoryReport{},
		ratelimit.Decision{}:    decisionReport{},
		new(redisstore.Stats):   redisReport{},
	} {
		sent, err := json.Marshal(page)
		require.NoError(t, err)
		for _, field := range reflect.VisibleFields(reflect.Indirect(reflect.ValueOf(library)).Type()) {
			assert.Contains(t, string(sent), `"`+strings.ToLower(field.Name[:1])+field.Name[1:]+`":`, "%T", library)
		}
	}
}

func TestDurationsAreSeconds(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0", 1: "0.000000001", time.Second: "1", 90*time.Minute + 50*time.Millisecond: "5400.050000000", ratelimit.Never: "null",
	} {
		got, err := json.Marshal(duration(d))
		require.NoError(t, err)
		assert.Equal(t, want, string(got))
	}
}
