package main

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing/synctest" //nolint:depguard // for virtual time
	"time"

	"github.com/benbjohnson/clock"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/redisstore"
)

const (
	processes = 5
	burst     = 20
	tokenTime = time.Second / 10 // in which the bucket gets a token
	holdTime  = 10 * time.Second
	key       = "ann"

	// A process is asked for so few holds that it has at most one to look for after failures: it
	// would ask for several at once, in an order that is up to the scheduler.
	holdPause = 16 * time.Second
)

// limit is that of the key, over all processes.
var limit = ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10), Burst: burst}

// A fleet has the processes and their server.
type fleet struct {
	plan      *plan
	start     time.Time
	server    *server
	processes []*process // by slot
	all       []*process // those that were killed or stopped, too
}

// A process has what a process of a service would have.
type process struct {
	slot    int
	clock   *wall
	client  *client
	store   *redisstore.Store
	limiter ratelimit.Limiter
	held    time.Time // when it was asked for a hold, the last time
}

func newFleet(p *plan) *fleet {
	f := &fleet{plan: p, start: time.Now(), server: newServer()}
	f.processes = make([]*process, processes)
	for slot := range processes {
		f.deploy(slot)
	}
	return f
}

// run does what is planned, one event after the other.
func (f *fleet) run() {
	last := f.start
	for _, e := range f.events() {
		last = instant(maxTime(last.Add(1), f.start.Add(e.at)), planned)
		time.Sleep(time.Until(last))
		synctest.Wait() // until all that the events before have begun is done, or waits
		e.do()
	}
	time.Sleep(cycle)
	for _, p := range f.all {
		_ = p.store.Close(context.Background()) // holds that it cannot settle end by themselves
	}
	synctest.Wait()
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// deploy puts a new process into a slot. The one before, if there is one, stops as a service should.
func (f *fleet) deploy(slot int) {
	rng := rand.New(rand.NewPCG(f.plan.seed, uint64(100+len(f.all))))
	p := &process{slot: slot, clock: &wall{Clock: clock.New()}}
	p.clock.jump(between(rng, -time.Minute, time.Minute)) // clocks differ
	p.client = &client{server: f.server, slot: slot, rng: rng}
	var err error
	p.store, err = redisstore.New(p.client, redisstore.WithTimeout(time.Minute))
	if err != nil {
		panic(err) // no seed decides on the options
	}
	opts := []ratelimit.Option{
		ratelimit.WithStore(p.store), ratelimit.WithName("api"), ratelimit.WithClock(p.clock),
		ratelimit.WithFailureLog(slog.New(slog.DiscardHandler)),
	}
	switch f.plan.policy {
	case open:
		opts = append(opts, ratelimit.WithFailurePolicy(ratelimit.FailOpen()))
	case closed:
		opts = append(opts, ratelimit.WithFailurePolicy(ratelimit.FailClosed()))
	case fallback:
		alone := ratelimit.Must(ratelimit.New(ratelimit.Share(limit, processes),
			ratelimit.WithClock(p.clock)))
		opts = append(opts, ratelimit.WithFailurePolicy(ratelimit.Fallback(inTurn{alone})))
	}
	p.limiter = ratelimit.Must(ratelimit.New(limit, opts...))
	f.processes[slot] = p // the former process still answers and settles what it has begun
	f.all = append(f.all, p)
}

// An inTurn is a limiter in memory. Requests that fail at once ask it in the order in which they were
// made, and not in that of the scheduler: each has an instant of its own.
type inTurn struct{ ratelimit.Limiter }

// The number of a request, in its context.
type number struct{}

func (l inTurn) Take(ctx context.Context, key string, n int) (ratelimit.Decision, error) {
	l.await(ctx)
	return l.Limiter.Take(ctx, key, n)
}

func (l inTurn) Hold(
	ctx context.Context, key string, n int, opts ...ratelimit.HoldOption,
) (*ratelimit.Reservation, ratelimit.Decision, error) {
	l.await(ctx)
	return l.Limiter.Hold(ctx, key, n, opts...)
}

func (inTurn) await(ctx context.Context) {
	i := ctx.Value(number{}).(int)
	time.Sleep(time.Duration(1+i%100) * apart)
}

// kill ends a process at once, with its requests and its open holds.
func (f *fleet) kill(slot int) {
	f.processes[slot].client.die()
}

// An answer is what became of a request.
type answer struct {
	by       *process
	decision ratelimit.Decision
	err      error
	hold     *ratelimit.Reservation
	asked    time.Time
	answered time.Time // zero if the process was killed before
	executed time.Time // when the server decided, or may have; zero if it did not
	clock    time.Time // of the process, when it answered

	settled         time.Time // when the settlement began; zero without
	settleClock     time.Time // of the process then
	settleExecuted  time.Time // when the server executed it, or may have; zero if it did not
	settleSucceeded bool
}

// ask sends a request to its process, or to the next one that is up.
func (f *fleet) ask(r *request) {
	for f.processes[r.slot].client.isDead() {
		r.slot = (r.slot + 1) % processes
	}
	p := f.processes[r.slot]
	r.by, r.asked = p, time.Now()
	r.holds = r.holds && r.asked.Sub(p.held) > holdPause
	if r.holds {
		p.held = r.asked
	}
	ctx := context.WithValue(context.Background(), number{}, r.number)
	go func() {
		var a answer
		if r.holds {
			a.hold, a.decision, a.err = p.limiter.Hold(ctx, key, r.n, ratelimit.HoldFor(holdTime))
		} else {
			a.decision, a.err = p.limiter.Take(ctx, key, r.n)
		}
		executed := p.client.executedBy(r.asked, a.err)
		r.executed = executed
		if p.client.isDead() {
			return
		}
		r.hold, r.decision, r.err = a.hold, a.decision, a.err
		r.answered, r.clock = time.Now(), p.clock.Now()
	}()
}

// executedBy returns when the server decided on what was asked and has just been answered, or zero if
// the process has answered by itself.
func (c *client) executedBy(asked time.Time, err error) time.Time {
	if time.Now().Equal(asked) || errors.Is(err, redisstore.ErrOpen) {
		return time.Time{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.executed
}

// settle settles the hold of a request, unless its process was killed.
func (f *fleet) settle(r *request) {
	if r.hold == nil || r.by.client.isDead() {
		return
	}
	r.settled, r.settleClock = time.Now(), r.by.clock.Now()
	go func() {
		d, err := r.hold.Settle(context.Background(), r.used)
		if r.by.client.isDead() {
			return
		}
		r.settleSucceeded = err == nil && !d.Degraded
		r.settleExecuted = r.by.client.executedBy(r.settled, err)
	}()
}

// A wall is the wall clock of a process, which an operator or NTP may set.
type wall struct {
	clock.Clock // for its timers

	mu    sync.Mutex // protects ahead
	ahead time.Duration
}

func (w *wall) jump(by time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ahead += by
}

// Now returns the time that the clock shows.
func (w *wall) Now() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Now().Round(0).Add(w.ahead)
}

// Since and Until go by what the clock shows as well, so a jump has its full effect.
func (w *wall) Since(t time.Time) time.Duration { return w.Now().Sub(t) }
func (w *wall) Until(t time.Time) time.Duration { return t.Sub(w.Now()) }
