package redis_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/internal/history"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/redisstore"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// The same calls are made to a limiter in Redis, and to one whose states are bytes in this process.
// Every field of every answer must be the same, to the microsecond, and the bytes in Redis must be
// the bytes in this process. That a limiter in memory gives these answers, too, is for
// internal/laws and storetest to say.

func FuzzScripts(f *testing.F) {
	addHistories(f, budget.Histories(40, 120))
	addr := startServer(f).addr()
	conns := []redisstore.Conn{connectors["rueidis"](f, addr), connectors["goredis"](f, addr)}
	f.Fuzz(func(t *testing.T, seed uint64) { playScripts(t, conns[seed%2], seed) })
}

// playScripts plays a random history of an algorithm, or of several that keys have by turns.
func playScripts(t *testing.T, conn redisstore.Conn, seed uint64) {
	t.Helper()
	draw := newDrawer(seed, 1)
	alg, how := draw.setup()
	limits := []ratelimit.Algorithm{alg}
	if how == varying {
		limits = append(limits, draw.like(alg), draw.like(alg), draw.algorithm())
	}
	span := spanOf(t, alg)
	g := &history.Generator{
		Choices: history.NewRandom(seed, 11),
		Keys:    []string{"a", "b"},
		Spans:   []time.Duration{span, span/10 + 1},
		Limits:  len(limits),
	}
	next := history.AtMost(120, history.Before2100(g.Next))
	history.Run(t, scripts(t, conn, limits, how), holdsFirst(seed, next))
}

// scripts returns what histories are played on that scripts decide.
func scripts(
	t *testing.T, conn redisstore.Conn, limits []ratelimit.Algorithm, how setup,
) *history.Twins {
	s := &history.Twins{Limits: limits, Start: began, Tick: time.Microsecond, Kept: "Redis and this process"}
	s.Open = func(of func(key string) ratelimit.Algorithm) history.OpenTwins {
		tr := &trace{T: t}
		tr.note("%#v", limits)
		if how == varying {
			tr.limitOf = of
		}
		require.NoError(t, tr.open(conn, prefixes(), limits[0], how), "%#v: %s", limits, drawOthers)
		return history.OpenTwins{
			Stores: []history.Store{{Limiters: []ratelimit.Limiter{tr.redis}}, {Limiters: []ratelimit.Limiter{tr.here}}},
			Clock:  tr.clk,
			After:  tr.comparison(how),
		}
	}
	return s
}

// holdsFirst begins every fourth history with a long list of holds, before next chooses the operations.
func holdsFirst(seed uint64, next history.Step) history.Step {
	holds := 0
	if seed%4 == 0 {
		holds = 40
	}
	return func(p history.Player) (history.Op, bool) {
		if holds == 0 {
			return next(p)
		}
		holds--
		return history.Op{Verb: history.Hold, Key: "a", N: 1, Name: fmt.Sprint("first ", holds)}, true
	}
}

// comparison returns a function that compares the states of a key after an operation, and requires
// that a script has decided on it.
func (tr *trace) comparison(how setup) func(ops []history.Op) error {
	loads, replaced := tr.conn.loads, tr.conn.replaced
	tr.known = tr.conn.sent
	ahead := map[string]bool{} // whether the key had turns ahead before
	return func(ops []history.Op) error {
		o := ops[0]
		mayReplace := how == varying || ahead[o.Key] || tr.mayReserveFar()
		if tr.conn.loads > loads || tr.conn.replaced > replaced && !mayReplace {
			return errors.New("it was not decided by the script")
		}
		loads, replaced, tr.known = tr.conn.loads, tr.conn.replaced, tr.conn.sent
		ahead[o.Key] = isAhead(tr.store.states[o.Key])
		return tr.stateDiffers(o.Key)
	}
}

// began is when the clock of a trace begins.
var began = time.Date(2026, 3, 1, 12, 34, 56, 789_000_000, time.UTC)

// An openHold is a hold in both stores, which may have ended.
type openHold struct {
	key string
	id  uint64
	n   int
}

// A held is a reservation in both stores.
type held struct {
	key         string
	n           int
	redis, here *ratelimit.Reservation
}

type trace struct {
	*testing.T
	drawer
	clk  *storetest.Clock
	log  []string
	span time.Duration

	redis, here ratelimit.Limiter
	opened      opened
	store       *portableStore
	conn        *recorder
	limitOf     func(key string) ratelimit.Algorithm // with WithLimits; nil without
	of          *ratelimit.Algorithm                 // the limit of each key, if a test changes it
	alg         ratelimit.Algorithm
	known       int // how many commands Redis had got before the present operation; or -1
	held        []held
	random      sync.Map // the IDs of holds that a limiter has chosen, unless they are numbered
	last        ratelimit.Decision
}

// A setup says how the limiters of a trace are set up.
type setup int

const (
	uncached setup = iota // without a cache of denials
	varying               // the same, with limits of keys' own
	cached
)

// newTraceOf returns a trace of an algorithm, to which the test makes the calls.
func newTraceOf(t *testing.T, conn redisstore.Conn, prefix string, alg ratelimit.Algorithm, how setup) *trace {
	t.Helper()
	tr := &trace{T: t}
	tr.note("%#v", alg)
	require.NoError(t, tr.open(conn, prefix, alg, how))
	return tr
}

// open opens the limiters.
func (tr *trace) open(conn redisstore.Conn, prefix string, alg ratelimit.Algorithm, how setup) error {
	tr.conn, tr.store = &recorder{Conn: conn}, &portableStore{states: map[string][]byte{}, number: numbers{}}
	tr.clk, tr.alg, tr.known = storetest.NewClock(began), alg, -1
	tr.store.isKnown = func() bool { return tr.conn.sent == tr.known }
	if how == varying && tr.limitOf == nil {
		tr.of = &alg
		tr.limitOf = func(string) ratelimit.Algorithm { return *tr.of }
	}
	tr.opened.Store, tr.opened.number = tr.newStore(tr.conn, prefix, how), numbers{}
	var err error
	if tr.redis, err = tr.newLimiter(&tr.opened); err != nil {
		return err
	}
	if tr.here, err = tr.newLimiter(tr.store); err != nil {
		return err
	}
	d, err := tr.here.Take(tr.Context(), "probe", 1)
	require.NoError(tr, err)
	tr.span = max(d.ResetAfter, time.Microsecond)
	return nil
}

// newStore returns a store of a process.
func (tr *trace) newStore(conn redisstore.Conn, prefix string, how setup) *redisstore.Store {
	opts := []redisstore.Option{redisstore.WithLimiterClock(), redisstore.WithTimeout(patient), redisstore.WithPrefix(prefix)}
	if how != cached { // denials in the cache are of one limit
		opts = append(opts, redisstore.WithDenialCache(0))
	}
	store, err := redisstore.New(conn, opts...)
	require.NoError(tr, err)
	return store
}

// newLimiter returns a limiter on a store.
func (tr *trace) newLimiter(store ratelimit.Store, more ...ratelimit.Option) (ratelimit.Limiter, error) {
	opts := []ratelimit.Option{ratelimit.WithStore(store), ratelimit.WithName("test"), ratelimit.WithClock(tr.clk)}
	if of := tr.limitOf; of != nil {
		opts = append(opts, ratelimit.WithLimits(func(_ context.Context, key string) (ratelimit.Algorithm, error) {
			return of(key), nil
		}))
	}
	return ratelimit.New(tr.alg, append(opts, more...)...)
}

func (tr *trace) note(format string, args ...any) {
	tr.log = append(tr.log, fmt.Sprintf(format, args...))
}

// up rounds d up to microseconds.
func up(d time.Duration) time.Duration {
	if d > math.MaxInt64-time.Microsecond {
		return d
	}
	return (d + time.Microsecond - 1).Truncate(time.Microsecond)
}

// ask makes a request in both stores.
func (tr *trace) ask(key string, req step.Request) step.Answer {
	tr.Helper()
	req = req.At(tr.clk.Now())
	loads, replaced, sent := tr.conn.loads, tr.conn.replaced, tr.conn.sent
	got, gotErr := tr.opened.Apply(tr.Context(), key, tr.store.t, req)
	was := tr.store.states[key]
	mayReplace := tr.limitOf != nil || isAhead(was) || tr.mayReserveFar()
	if tr.conn.loads > loads || tr.conn.replaced > replaced && !mayReplace {
		tr.fail("it was not decided by the script")
	}
	want, wantErr := tr.store.Apply(tr.Context(), key, tr.store.t, req)
	if tr.conn.sent == sent { // a cached denial ends no holds
		tr.store.states[key] = was
	}
	got.Ended, want.Ended = 0, 0 // the script says it otherwise
	if req.Op == step.OpSettle || req.Op == step.OpExtend {
		got.Idle, want.Idle = 0, 0 // the script knows the ends of all holds, and its reply has some
	}
	if tr.conn.sent == sent { // a cached denial
		got, want = step.Answer{Decision: got.Decision}, step.Answer{Decision: want.Decision}
	}
	if got != want || fmt.Sprint(gotErr) != fmt.Sprint(wantErr) {
		tr.fail("in Redis %+v, %v\n    here %+v, %v", got, gotErr, want, wantErr)
	}
	tr.last = ratelimit.Decision(got.Decision)
	tr.compareStates(key)
	return got
}

func (tr *trace) compare(key string, ask func(ratelimit.Limiter) (ratelimit.Decision, error)) {
	tr.Helper()
	loads, sent := tr.conn.loads, tr.conn.sent
	got, gotErr := ask(tr.redis)
	if tr.conn.loads > loads {
		tr.fail("it was not decided by the script")
	}
	was := tr.store.states[key]
	want, wantErr := ask(tr.here)
	if tr.conn.sent == sent { // a cached denial ends no holds
		tr.store.states[key] = was
	}
	if got != want || fmt.Sprint(gotErr) != fmt.Sprint(wantErr) {
		tr.fail("in Redis %+v, %v\n    here %+v, %v", got, gotErr, want, wantErr)
	}
	tr.last = got
	tr.compareStates(key)
}

// mayReserveFar reports whether another part of the limit may have a reservation wait for a window of
// a calendar after the next, which a script does not know.
func (tr *trace) mayReserveFar() bool {
	all, _ := tr.alg.(ratelimit.All)
	return len(all) > 1 && slices.ContainsFunc(all, func(part ratelimit.Algorithm) bool {
		_, is := part.(ratelimit.CalendarWindow)
		return is
	})
}

// isAhead reports whether a state has turns ahead.
func isAhead(state []byte) bool { return len(state) > 0 && state[0] == 3 }

func (tr *trace) compareStates(key string) {
	tr.Helper()
	if err := tr.stateDiffers(key); err != nil {
		tr.fail("%v", err)
	}
}

// stateDiffers returns an error if the states of a key differ.
func (tr *trace) stateDiffers(key string) error {
	got, err := tr.conn.get(tr.Context(), key)
	if err != nil {
		return err
	}
	if got == "" { // Redis has no state that equals that of a new key
		delete(tr.store.states, key)
	}
	if want := string(tr.store.states[key]); !tr.sameState(tr.masked(got), tr.masked(want)) {
		return fmt.Errorf("in Redis %q\n    here %x", got, want)
	}
	return nil
}

// masked returns a state without the IDs that are random.
func (tr *trace) masked(state string) string {
	for id := range tr.random.Range {
		if id := id.(uint64); id > 0 {
			state = strings.ReplaceAll(state, string(binary.LittleEndian.AppendUint64(nil, id)), "(random)")
		}
	}
	return state
}

// sameState reports whether got, in Redis, is the state want. That of a bucket may have the
// short form, which is the microseconds and the units in decimal, and its latest instant may
// be missing once it has passed.
func (tr *trace) sameState(got, want string) bool {
	if got == want {
		return true
	}
	if len(want) < 24 || tr.limitOf != nil || strings.Contains(tr.log[0], "WarmingUp") {
		return false
	}
	words := want[len(want)-24:]
	passed := uint64(tr.clk.Now().UnixMicro())
	if strings.Contains(tr.log[0], "LeakyBucket") { // in which it says nothing until it is empty
		passed = max(passed, binary.LittleEndian.Uint64([]byte(words)))
	}
	if binary.LittleEndian.Uint64([]byte(words[16:])) > passed {
		return false
	}
	if len(got) == 19 { // the short form
		ticks, err := strconv.ParseUint(got[:15], 10, 64)
		return err == nil && words[:16] == string(binary.LittleEndian.AppendUint64(nil, ticks+15e14))+string(make([]byte, 8))
	}
	return got == want[:len(want)-8]+string(make([]byte, 8))
}

func (tr *trace) reserve(key string, n int) {
	tr.note("Reserve(%s, %d)", key, n)
	loads := tr.conn.loads
	got, _, gotErr := tr.redis.Reserve(tr.Context(), key, n)
	if tr.conn.loads > loads {
		tr.fail("it was not decided by the script")
	}
	want, _, wantErr := tr.here.Reserve(tr.Context(), key, n)
	if fmt.Sprint(gotErr) != fmt.Sprint(wantErr) || (got == nil) != (want == nil) {
		tr.fail("in Redis %v, %v\n    here %v, %v", got, gotErr, want, wantErr)
	}
	if got == nil {
		return
	}
	if got.Delay() != want.Delay() {
		tr.fail("in Redis %v\n    here %v", got.Delay(), want.Delay())
	}
	tr.compareStates(key)
	if n > 0 {
		tr.held = append(tr.held, held{key, n, got, want})
	}
}

func (tr *trace) fail(format string, args ...any) {
	tr.Helper()
	tr.Fatalf("after\n\t%s\n"+format, append([]any{strings.Join(tr.log, "\n\t")}, args...)...)
}

// A portableStore keeps states as bytes, in the same form as in Redis.
type portableStore struct {
	fakes.NoLine
	states map[string][]byte
	number numbers

	// of the latest Apply
	t   *limit.Limit
	req step.Request

	// Whether Redis has not been asked, because a denial is known there: then no state is changed. It
	// may be nil.
	isKnown func() bool
}

func (s *portableStore) Open(_ string, t *limit.Limit, timeout time.Duration) (limit.States, error) {
	_, err := t.Portable(time.Microsecond)
	return s, err
}

func (s *portableStore) Apply(_ context.Context, key string, t *limit.Limit, req step.Request) (step.Answer, error) {
	s.t, s.req = t, req
	t, err := t.Portable(time.Microsecond)
	if err != nil {
		return step.Answer{}, err
	}
	return s.number.apply(req, func(req step.Request) (step.Answer, error) {
		after, err := t.Apply(s.states[key], req)
		if after.Changed && (s.isKnown == nil || !s.isKnown()) {
			s.states[key] = after.State
		}
		return after.Answer, err
	})
}

func (s *portableStore) Reset(_ context.Context, key string) error {
	delete(s.states, key)
	return nil
}

// An opened keeps the States of the one limiter on a store.
type opened struct {
	ratelimit.Store
	limit.States
	t      *limit.Limit
	number numbers
}

func (o *opened) Open(name string, t *limit.Limit, timeout time.Duration) (limit.States, error) {
	var err error
	o.t = t
	o.States, err = o.Store.Open(name, t, timeout)
	return o, err
}

func (o *opened) Apply(ctx context.Context, key string, t *limit.Limit, req step.Request) (step.Answer, error) {
	return o.number.apply(req, func(req step.Request) (step.Answer, error) {
		return o.States.Apply(ctx, key, t, req)
	})
}

// numbers replace the IDs that limiters have chosen at random, so that those of two stores are equal.
type numbers map[uint64]uint64

// apply makes a request. A hold gets its number when it is opened.
func (n numbers) apply(req step.Request, apply func(step.Request) (step.Answer, error)) (step.Answer, error) {
	id := req.Hold.ID
	if n == nil || id <= 1<<20 {
		return apply(req)
	}
	if req.Hold.ID = n[id]; req.Hold.ID == 0 {
		req.Hold.ID = 1<<20 - 2*uint64(len(n)) - id%2
	}
	res, err := apply(req)
	if res.Held {
		n[id] = req.Hold.ID
	}
	return res, err
}

// A recorder records the key of the latest command.
type recorder struct {
	redisstore.Conn
	mu    sync.Mutex
	key   string
	loads int // commands without arguments besides the key, which only fetch a state

	sent     int // commands
	replaced int // values that were replaced by a state that this process has computed
}

func (r *recorder) Do(ctx context.Context, commands []redisstore.Command) []redisstore.Reply {
	for _, c := range commands {
		r.record(c)
	}
	return r.Conn.Do(ctx, commands)
}

func (r *recorder) record(c redisstore.Command) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sent++
	r.key = c.Words[c.Key]
	if c.Words[0] != "DEL" && len(c.Words) == c.Key+1 {
		r.loads++
	}
	if len(c.Words) == c.Key+4 && c.Words[0] == "EVALSHA" &&
		strings.Trim(c.Words[c.Key+3], "0123456789") == "" {
		r.replaced++
	}
}

// get returns the value of a key. All keys here have one letter.
func (r *recorder) get(ctx context.Context, key string) (string, error) {
	switch {
	case len(key) != 1:
		return "", fmt.Errorf("the key %q does not have one letter", key)
	case r.key == "":
		return "", nil // no command was sent yet
	}
	return eval(ctx, r.Conn, "return redis.call('GET', KEYS[1]) or ''", r.key[:len(r.key)-1]+key)
}
