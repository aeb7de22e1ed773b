package redis_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/fakeredis"
	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/redisstore"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// The tests of package redisstore call a fake server. Here, the same calls are made to stores on a
// real server and on a fake one: all Decisions, errors and values must be the same.

// FuzzFake makes calls of all kinds, of which some are on several keys or share a command, while
// limits change, values are damaged and scripts are forgotten.
func FuzzFake(f *testing.F) {
	addHistories(f, budget.Histories(60, 200))
	s := startServer(f)
	client, conn := s.client(), connectors["rueidis"](f, s.addr())
	f.Fuzz(func(t *testing.T, seed uint64) { newLikeness(t, client, conn, seed).run(80) })
}

// FuzzFakeScripts makes the calls of FuzzScripts to a fake server.
func FuzzFakeScripts(f *testing.F) {
	addHistories(f, budget.Histories(40, 120))
	f.Fuzz(func(t *testing.T, seed uint64) {
		playScripts(t, fakeConn{fake: fakeredis.New()}, seed)
	})
}

// FuzzFakeJoint makes the calls of FuzzJoint to a fake server.
func FuzzFakeJoint(f *testing.F) {
	addHistories(f, budget.Histories(50, 150))
	f.Fuzz(func(t *testing.T, seed uint64) {
		newJointTrace(t, fakeConn{fake: fakeredis.New()}, seed).run(60)
	})
}

// FuzzFakeBatches makes the calls of FuzzBatches to a fake server.
func FuzzFakeBatches(f *testing.F) {
	addHistories(f, budget.Histories(12, 30))
	f.Fuzz(func(t *testing.T, seed uint64) {
		conn := &gate{Conn: fakeConn{fake: fakeredis.New()}}
		newTrace(t, conn, seed).batches(conn)
	})
}

// What a Take of no events changes is for the process to say, if holds are open when the last turn
// has come: those from before the turns, or the reservation itself. The fake server knows which
// requests a script leaves to the process.
func TestNothingTakenWhenTurnsHaveCome(t *testing.T) {
	bucket := ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 2}
	conns := map[string]redisstore.Conn{
		"Redis": connectors["rueidis"](t, startServer(t).addr()),
		"fake":  fakeConn{fake: fakeredis.New()},
	}
	for server, conn := range conns {
		for _, of := range []string{"before the turn", "from the turn on"} {
			t.Run(server+", a hold "+of, func(t *testing.T) {
				tr := newTraceOf(t, conn, prefixes(), bucket, uncached)
				hold := step.Request{Op: step.OpHold, N: 2, Hold: step.Handle{ID: 1, For: time.Hour}}
				turn := step.Request{
					Op: step.OpReserve, N: 1, Hold: step.Handle{ID: 4}, MaxWait: time.Minute,
				}
				if of == "from the turn on" {
					hold.Hold = step.Handle{}
					turn.Hold = step.Handle{ID: 3, For: time.Hour}
				}
				tr.ask("k", hold)
				tr.ask("k", turn)
				tr.clk.Advance(10 * time.Second)
				tr.ask("k", step.Request{Op: step.OpTake})
			})
		}
	}
}

// A fakeConn sends commands to a fake server.
type fakeConn struct {
	loneServer
	fake *fakeredis.Server
}

func (c fakeConn) Do(ctx context.Context, commands []redisstore.Command) []redisstore.Reply {
	asked := make([]fakeredis.Command, len(commands))
	for i, command := range commands {
		asked[i] = fakeredis.Command(command)
	}
	replies := make([]redisstore.Reply, len(commands))
	for i, reply := range c.fake.Do(ctx, asked) {
		replies[i] = redisstore.Reply(reply)
	}
	return replies
}

// A sender is a connection that remembers the arguments of its commands.
type sender struct {
	redisstore.Conn
	mu   sync.Mutex
	sent strings.Builder
}

func (s *sender) Do(ctx context.Context, commands []redisstore.Command) []redisstore.Reply {
	s.mu.Lock()
	for _, c := range commands {
		for _, arg := range c.Words[c.Key:] {
			s.sent.WriteString(arg)
		}
	}
	s.mu.Unlock()
	return s.Conn.Do(ctx, commands)
}

func (s *sender) OneServer() bool { return true }

// hasSent reports whether a number was sent, as scripts get it.
func (s *sender) hasSent(number uint64) bool {
	double := binary.LittleEndian.AppendUint64(nil, math.Float64bits(float64(number)))
	return strings.Contains(s.sent.String(), string(double))
}

// A likeness is a history of calls to stores on a real server and on a fake one. Each limiter has a
// key of its own.
type likeness struct {
	*trace
	real, fake   side
	client       *redis.Client // of the real server
	fakeServer   *fakeredis.Server
	limits       [jointKeys]ratelimit.Algorithm // of the keys
	varies       bool                           // whether the limits change
	reservations [][2]*ratelimit.Reservation    // those that are not settled, on both sides
}

// A side is a store, and its limiters.
type side struct {
	conn     *sender
	store    *redisstore.Store
	limiters [jointKeys]ratelimit.Limiter
}

func newLikeness(
	t *testing.T,
	client *redis.Client,
	conn redisstore.Conn,
	seed uint64,
) *likeness {
	k := &likeness{
		trace:      &trace{T: t, rng: rand.New(rand.NewPCG(seed, 3))},
		client:     client,
		fakeServer: fakeredis.New(),
	}
	k.clk = storetest.NewClock(began)
	k.varies = k.rng.IntN(2) == 0
	for i := range k.limits {
		k.limits[i] = k.algorithm()
		k.note("limit %d: %#v, varies: %t", i, k.limits[i], k.varies)
	}
	require.NoError(t, client.FlushAll(t.Context()).Err())
	require.NoError(t, client.ScriptFlush(t.Context()).Err())
	k.real, k.fake = k.newSide(conn), k.newSide(fakeConn{fake: k.fakeServer})
	for i := range jointKeys {
		k.same(func(s *side) (ratelimit.Decision, error) { return s.limiters[i].Peek(t.Context(), "k") })
		k.span = max(k.span, k.last.ResetAfter, time.Microsecond)
	}
	return k
}

func (k *likeness) newSide(conn redisstore.Conn) (s side) {
	var err error
	s.conn = &sender{Conn: conn}
	s.store, err = redisstore.New(
		s.conn,
		redisstore.WithLimiterClock(),
		redisstore.WithTimeout(patient),
		redisstore.WithDenialCache(0),
	)
	require.NoError(k, err)
	for i := range jointKeys {
		opts := []ratelimit.Option{
			ratelimit.WithStore(s.store),
			ratelimit.WithName(fmt.Sprint(i)),
			ratelimit.WithClock(k.clk),
		}
		if k.varies {
			limit := func(context.Context, string) (ratelimit.Algorithm, error) {
				return k.limits[i], nil
			}
			opts = append(opts, ratelimit.WithLimits(limit))
		}
		s.limiters[i], err = ratelimit.New(k.limits[i], opts...)
		require.NoError(k, err, "%v: every store has room for the parameters that are drawn", k.log)
	}
	return s
}

func (k *likeness) run(steps int) {
	ctx := k.Context()
	for range steps {
		k.advance()
		i, n := k.rng.IntN(jointKeys), k.events()
		switch k.rng.IntN(20) {
		case 0:
			k.note("Peek(%d)", i)
			k.same(func(s *side) (ratelimit.Decision, error) { return s.limiters[i].Peek(ctx, "k") })
		case 1:
			n = k.debt(n)
			k.note("Charge(%d, %d)", i, n)
			k.same(func(s *side) (ratelimit.Decision, error) { return s.limiters[i].Charge(ctx, "k", n) })
		case 2, 3, 4:
			k.hold(i, n)
		case 5:
			k.reserve(i, n)
		case 6, 7, 8:
			k.settle()
		case 9, 10:
			k.together(n)
		case 11:
			keys := []string{"k", "k", "k"} // in one command
			k.note("TakeEach(%d, %d)", i, n)
			k.same(func(s *side) (last ratelimit.Decision, err error) {
				all, err := s.limiters[i].TakeEach(ctx, keys, n, nil)
				return all[2], err
			})
		case 12:
			if k.rng.IntN(3) == 0 {
				k.note("Reset(%d)", i)
				k.same(func(s *side) (ratelimit.Decision, error) {
					return ratelimit.Decision{}, s.limiters[i].Reset(ctx, "k")
				})
			}
		case 13:
			if k.varies {
				k.limits[i] = k.like(k.limits[i])
				k.note("limit %d is now %#v", i, k.limits[i])
			}
		case 14:
			k.damage()
		case 15:
			k.note("no scripts")
			require.NoError(k, k.client.ScriptFlush(ctx).Err())
			k.fakeServer.Flush()
		default:
			k.note("Take(%d, %d)", i, n)
			k.same(func(s *side) (ratelimit.Decision, error) { return s.limiters[i].Take(ctx, "k", n) })
		}
	}
}

// hold holds events, which are given back or not if the hold ends by itself.
func (k *likeness) hold(i, n int) {
	opts := []ratelimit.HoldOption{ratelimit.HoldFor(k.lasts())}
	back := k.rng.IntN(2) == 0
	if back {
		opts = append(opts, ratelimit.GiveBack())
	}
	k.note("Hold(%d, %d), given back: %t", i, n, back)
	k.reserved(func(s *side) (*ratelimit.Reservation, ratelimit.Decision, error) {
		return s.limiters[i].Hold(k.Context(), "k", n, opts...)
	})
}

// reserve reserves events, which are a hold or not from their turn on.
func (k *likeness) reserve(i, n int) {
	opts := []ratelimit.ReserveOption{ratelimit.Within(time.Duration(k.rng.Int64N(int64(k.span))))}
	holds := k.rng.IntN(2) == 0
	if holds {
		opts = append(opts, ratelimit.HoldFor(k.lasts()))
	}
	k.note("Reserve(%d, %d), a hold: %t", i, n, holds)
	k.reserved(func(s *side) (*ratelimit.Reservation, ratelimit.Decision, error) {
		return s.limiters[i].Reserve(k.Context(), "k", n, opts...)
	})
}

// reserved makes a reservation on both sides.
func (k *likeness) reserved(
	ask func(s *side) (*ratelimit.Reservation, ratelimit.Decision, error),
) {
	k.Helper()
	var both [2]*ratelimit.Reservation
	k.same(func(s *side) (d ratelimit.Decision, err error) {
		both[k.sideOf(s)], d, err = ask(s)
		return d, err
	})
	if both[0] != nil && both[1] != nil {
		k.reservations = append(k.reservations, both)
	}
}

// sideOf returns 0 for the real server, and 1 for the fake one.
func (k *likeness) sideOf(s *side) int {
	if s == &k.fake {
		return 1
	}
	return 0
}

// settle settles, cancels or extends a reservation, which may have ended.
func (k *likeness) settle() {
	if len(k.reservations) == 0 {
		return
	}
	i, n, lasts := k.rng.IntN(len(k.reservations)), k.events(), k.lasts()
	both := k.reservations[i]
	how := k.rng.IntN(3)
	if how > 0 {
		k.reservations = slices.Delete(k.reservations, i, i+1)
	}
	k.note("%s %d for %d events or %v", []string{"Extend", "Cancel", "Settle"}[how], i, n, lasts)
	k.same(func(s *side) (ratelimit.Decision, error) {
		r := both[k.sideOf(s)]
		switch how {
		case 0:
			return ratelimit.Decision{}, r.Extend(k.Context(), lasts)
		case 1:
			r.Cancel()
			return ratelimit.Decision{}, nil
		}
		return r.Settle(k.Context(), n)
	})
}

// together takes or holds events of several keys, if all grant them.
func (k *likeness) together(n int) {
	order := k.rng.Perm(jointKeys)[:2+k.rng.IntN(2)]
	first := k.events() * k.rng.IntN(2)
	for _, i := range order {
		if strings.Contains(fmt.Sprintf("%#v", k.limits[i]), "CountDenied:true") {
			n, first = max(1, n), max(1, first) // see fakeredis.Server
		}
	}
	holds := k.rng.IntN(2) == 0
	k.note("TakeAll(%v, %d), of the first %d, a hold: %t", order, n, first, holds)
	bounds := func(s *side) (all []ratelimit.Bound) {
		for _, i := range order {
			all = append(all, ratelimit.For(s.limiters[i], "k"))
		}
		all[0] = all[0].N(first)
		return all
	}
	if holds {
		k.reserved(func(s *side) (*ratelimit.Reservation, ratelimit.Decision, error) {
			return ratelimit.HoldAll(k.Context(), n, bounds(s)...)
		})
		return
	}
	k.same(func(s *side) (ratelimit.Decision, error) {
		return ratelimit.TakeAll(k.Context(), n, bounds(s)...)
	})
}

// damage replaces a value by one that cannot be read, or perhaps by one that can.
func (k *likeness) damage() {
	values := k.values()
	names := slices.Sorted(maps.Keys(values))
	if len(names) == 0 {
		return
	}
	name, how := names[k.rng.IntN(len(names))], k.rng.IntN(8)
	damaged := func(value string) string { // the values may differ in the IDs of holds
		return []string{
			"damaged", value[:3], value[1:], "+763791234567890123", "2637912345678901003",
			"\x02" + value[1:], "\x03" + value[1:], "\x7f" + value[1:],
		}[how]
	}
	k.note("the value of %q is now %q", name, damaged(values[name]))
	require.NoError(k, k.client.Set(k.Context(), name, damaged(values[name]), 0).Err())
	k.fakeServer.Values[name] = damaged(k.fakeServer.Values[name])
}

// same makes a call on both sides, and compares the answers, the values and the numbers of commands,
// of holds that have ended and of values that could not be read.
func (k *likeness) same(ask func(s *side) (ratelimit.Decision, error)) {
	k.Helper()
	before := k.values()
	calls, fakeCalls := k.real.store.Stats().Calls, k.fake.store.Stats().Calls
	d, err := ask(&k.real)
	fakeD, fakeErr := ask(&k.fake)
	calls, fakeCalls = k.real.store.Stats().Calls-calls, k.fake.store.Stats().Calls-fakeCalls
	if d != fakeD || masked(err) != masked(fakeErr) {
		k.fail("in Redis %+v, %v\nin the fake %+v, %v", d, err, fakeD, fakeErr)
	}
	values := k.values()
	if fakeCalls > calls || fakeCalls < calls && !areOpen(before) && !areOpen(values) {
		k.fail("in Redis %d commands\nin the fake %d", calls, fakeCalls)
	}
	for name := range k.fakeServer.Values {
		values[name] += "" // a value that only the fake one has
	}
	for name, value := range values {
		if fake := k.fakeServer.Values[name]; !k.sameValue(value, fake) {
			k.fail("in Redis %q has %q\nin the fake %q", name, value, fake)
		}
	}
	stats, fakeStats := k.real.store.Stats(), k.fake.store.Stats()
	if stats.Ended != fakeStats.Ended || stats.Unreadable != fakeStats.Unreadable {
		k.fail(
			"in Redis %d holds have ended, and %d values could not be read\nin the fake %d and %d",
			stats.Ended, stats.Unreadable,
			fakeStats.Ended, fakeStats.Unreadable,
		)
	}
	k.last = d
}

// areOpen reports whether a value has open holds or turns ahead: then, the scripts may leave a
// request to the process, which takes more commands.
func areOpen(values map[string]string) bool {
	for _, value := range values {
		if value[0] == 2 || value[0] == 3 {
			return true
		}
	}
	return false
}

// stateInError matches what an error says of a state that could not be read. A script may have used
// a damaged state before.
var stateInError = regexp.MustCompile(`the \d+ bytes begin with [0-9a-f]+`)

func masked(err error) string {
	return stateInError.ReplaceAllString(fmt.Sprint(err), "(state)")
}

// values returns what the real server has stored.
func (k *likeness) values() map[string]string {
	names, err := k.client.Keys(k.Context(), "*").Result()
	require.NoError(k, err)
	values := map[string]string{}
	for _, name := range names {
		values[name], err = k.client.Get(k.Context(), name).Result()
		require.NoError(k, err)
	}
	return values
}

// sameValue reports whether two values are equal, apart from the IDs of holds, which are random:
// they are the numbers that were sent to one of the servers only.
func (k *likeness) sameValue(value, fake string) bool {
	if len(value) != len(fake) {
		return false
	}
	for ; len(value) >= 8; value, fake = value[:len(value)-8], fake[:len(fake)-8] {
		word, fakeWord := lastWord(value), lastWord(fake)
		random := word != fakeWord && k.real.conn.hasSent(word) && !k.fake.conn.hasSent(word) &&
			k.fake.conn.hasSent(fakeWord) && !k.real.conn.hasSent(fakeWord)
		if word != fakeWord && !random {
			return false
		}
	}
	return value == fake
}

func lastWord(value string) uint64 {
	return binary.LittleEndian.Uint64([]byte(value[len(value)-8:]))
}
