package redis_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
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
	"github.com/ratelimit-go/ratelimit/internal/history"
	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/redisstore"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// The tests of package redisstore call a fake server. Here, the same calls are made to stores on a
// real server and on a fake one: all Decisions, errors and values must be the same.

// FuzzFake makes calls of all kinds, of which some are on several keys, or of one in a TakeEach, so that
// they share a command, while limits change, values are damaged and scripts are forgotten.
func FuzzFake(f *testing.F) {
	addHistories(f, budget.Histories(60, 200))
	s := startServer(f)
	client, conn := s.client(), connectors["rueidis"](f, s.addr())
	f.Fuzz(func(t *testing.T, seed uint64) { playFake(t, client, conn, seed) })
}

// FuzzFakeScripts makes the calls of FuzzScripts to a fake server.
func FuzzFakeScripts(f *testing.F) {
	addHistories(f, budget.Histories(40, 120))
	f.Fuzz(func(t *testing.T, seed uint64) {
		playScripts(t, fakeConn{fake: fakeredis.New()}, seed)
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
	mu    sync.Mutex
	sent  strings.Builder
	calls int             // commands, of which those do not count that send a script in full
	full  map[string]bool // the scripts that were sent in full since all were forgotten
	again bool            // whether one was sent so twice
}

// newCalls returns how many commands were sent since it was called before.
func (s *sender) newCalls() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, s.calls = s.calls, 0
	return n
}

func (s *sender) Do(ctx context.Context, commands []redisstore.Command) []redisstore.Reply {
	s.mu.Lock()
	for _, c := range commands {
		if script := c.Words[1]; c.Words[0] != "EVAL" {
			s.calls++
		} else {
			s.again = s.again || s.full[script]
			s.full[script] = true
		}
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

// playFake plays a random history of three keys on a real server and on a fake one.
func playFake(t *testing.T, client *redis.Client, conn redisstore.Conn, seed uint64) {
	t.Helper()
	draw := newDrawer(seed, 3)
	var limits []ratelimit.Algorithm
	for range jointKeys {
		limits = append(limits, draw.algorithm())
	}
	g := &history.Generator{
		Choices:   history.NewRandom(seed, 13),
		Keys:      slices.Sorted(maps.Keys(jointKeys)),
		OfSeveral: true,
		Together:  true,
		OwnLimits: true,
	}
	if draw.rng.IntN(2) == 0 {
		for _, alg := range limits[:len(jointKeys)] {
			limits = append(limits, draw.like(alg))
		}
		g.Limits = len(limits)
	}
	s := &history.Twins{Limits: limits, Own: jointKeys, Start: began, Tick: time.Microsecond, Kept: "Redis and the fake server"}
	s.Open = func(of func(key string) ratelimit.Algorithm) history.OpenTwins {
		k := openLikeness(t, client, conn, limits, of, g.Limits > 0)
		return history.OpenTwins{
			Stores: []history.Store{k.real.Store, k.fake.Store},
			Clock:  k.clk,
			After:  func([]history.Op) error { return k.differs() },
			Fault:  k.fault,
		}
	}
	span := spanOf(t, limits[:len(jointKeys)]...)
	g.Spans = []time.Duration{span, span/10 + 1}
	next := withFaults(draw, asFake(limits, asJoint(limits, span/2, history.Before2100(g.Next))))
	history.Run(t, s, history.AtMost(100, next))
}

// withFaults lets faults happen between operations.
func withFaults(draw drawer, next history.Step) history.Step {
	return func(p history.Player) (history.Op, bool) {
		switch draw.rng.IntN(20) {
		case 0:
			return history.Op{Verb: history.Fault, Name: "flushed"}, true
		case 1:
			key := string(rune('a' + draw.rng.IntN(len(jointKeys))))
			return history.Op{Verb: history.Fault, Name: "damaged", N: draw.rng.IntN(8), Key: key}, true
		}
		return next(p)
	}
}

// asFake lets each key of several be asked for an event, if a log counts what is denied: see
// fakeredis.Server. And it lets most keys have limits of their own kind.
func asFake(limits []ratelimit.Algorithm, next history.Step) history.Step {
	counts := strings.Contains(fmt.Sprintf("%#v", limits), "CountDenied:true")
	return func(p history.Player) (history.Op, bool) {
		o, ok := next(p)
		if own := jointKeys[o.Key]; o.Verb == history.Limit && o.N > 0 {
			o.N = own + o.N/len(jointKeys)*len(jointKeys)
		}
		if counts && o.Verb != history.Settle && o.OfSeveral() {
			o.N = max(1, o.N)
			for i := range o.With {
				if o.With[i].Key != "" {
					o.With[i].N = max(1, o.With[i].N)
				}
			}
		}
		return o, ok
	}
}

// A likeness has stores on a real server and on a fake one.
type likeness struct {
	*trace
	real, fake side
	client     *redis.Client // of the real server
	fakeServer *fakeredis.Server
	were       map[string]string // the values of the real server before the present operation
}

// A side is a store, and its limiters.
type side struct {
	history.Store
	conn  *sender
	store *redisstore.Store
}

func openLikeness(
	t *testing.T,
	client *redis.Client,
	conn redisstore.Conn,
	limits []ratelimit.Algorithm,
	of func(key string) ratelimit.Algorithm,
	varies bool,
) *likeness {
	k := &likeness{
		trace:      &trace{T: t, clk: storetest.NewClock(began)},
		client:     client,
		fakeServer: fakeredis.New(),
	}
	require.NoError(t, client.FlushAll(t.Context()).Err())
	require.NoError(t, client.ScriptFlush(t.Context()).Err())
	if varies {
		k.limitOf = of
	}
	k.real, k.fake = k.newSide(conn, limits), k.newSide(fakeConn{fake: k.fakeServer}, limits)
	return k
}

func (k *likeness) newSide(conn redisstore.Conn, limits []ratelimit.Algorithm) (s side) {
	s.conn = &sender{Conn: conn, full: map[string]bool{}}
	s.store = k.newStore(s.conn, "", uncached)
	s.Limiters, s.TakesEach = make([]ratelimit.Limiter, len(jointKeys)), true
	for key, i := range jointKeys {
		k.alg = limits[i]
		var err error
		s.Limiters[i], err = k.newLimiter(s.store, ratelimit.WithName(key))
		require.NoError(k, err, "%#v: %s", k.alg, drawOthers)
	}
	return s
}

// fault lets all scripts be forgotten, or damages the value of a key: it is replaced by one that
// cannot be read, or perhaps by one that can.
func (k *likeness) fault(o history.Op) (damages bool) {
	if o.Name == "flushed" {
		require.NoError(k, k.client.ScriptFlush(k.Context()).Err())
		k.fakeServer.Flush()
		clear(k.real.conn.full)
		clear(k.fake.conn.full)
		return false
	}
	for name, value := range k.values() {
		if !strings.HasSuffix(name, ":"+o.Key) {
			continue
		}
		damaged := func(value string) string { // the values may differ in the IDs of holds
			rest := value[min(1, len(value)):]
			return []string{
				"damaged", value[:min(3, len(value))], rest, "+763791234567890123", "2637912345678901003",
				"\x02" + rest, "\x03" + rest, "\x7f" + rest,
			}[o.N%8]
		}
		require.NoError(k, k.client.Set(k.Context(), name, damaged(value), 0).Err())
		k.fakeServer.Values[name] = damaged(k.fakeServer.Values[name])
		k.were, damages = k.values(), true
	}
	return damages
}

// differs returns an error if the values differ, or the numbers of commands that were sent since it
// was called before, of holds that have ended, or of values that could not be read.
func (k *likeness) differs() error {
	calls, fakeCalls := k.real.conn.newCalls(), k.fake.conn.newCalls()
	values := k.values()
	before := k.were
	k.were = maps.Clone(values)
	if k.real.conn.again || k.fake.conn.again {
		return errors.New("a script was sent in full although the server had it")
	}
	// While holds are open or turns ahead, a script may leave a request to the process, or the fake
	// server may, when a turn has come.
	mayDiffer := areOpen(before) || areOpen(values)
	if fakeCalls > calls+1 || fakeCalls != calls && !mayDiffer {
		return fmt.Errorf("in Redis %d commands\nin the fake %d", calls, fakeCalls)
	}
	for name := range k.fakeServer.Values {
		values[name] += "" // a value that only the fake one has
	}
	for name, value := range values {
		if fake := k.fakeServer.Values[name]; !k.sameValue(value, fake) {
			return fmt.Errorf("in Redis %q has %q\nin the fake %q", name, value, fake)
		}
	}
	stats, fakeStats := k.real.store.Stats(), k.fake.store.Stats()
	if stats.Ended != fakeStats.Ended || stats.Unreadable != fakeStats.Unreadable {
		return fmt.Errorf(
			"in Redis %d holds have ended, and %d values could not be read\nin the fake %d and %d",
			stats.Ended, stats.Unreadable,
			fakeStats.Ended, fakeStats.Unreadable,
		)
	}
	return nil
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
