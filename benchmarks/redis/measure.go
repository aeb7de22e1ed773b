package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/ratelimit-go/ratelimit/benchmarks/peers"
	"github.com/ratelimit-go/ratelimit/benchmarks/server"
)

// Traffic is what callers ask for.
type traffic struct {
	name  string
	limit peers.Limit
	own   bool // whether each caller has keys of its own; else all callers have one key
	grant bool // whether events are granted; else only the first one is
}

var traffics = []traffic{
	{"many", peers.Plenty, true, true},
	{"hot", peers.Plenty, false, true},
	{"denied", peers.Once, false, false},
}

// has reports whether a limiter can have this traffic.
func (t traffic) has(column string) bool {
	switch column {
	case "floor", "floor-auto", "floor-rueidis": // they deny nothing, and share nothing
		return t.own
	case "throttled": // swaps until no other caller comes between
		return t.own
	case "lib-hold": // a key that grants one event has no room for two
		return t.grant
	}
	return true
}

// A setUp is what the columns of a group of lines have in common.
type setUp struct {
	callers int
	away    time.Duration
	pool    string
	traffic traffic
}

func (u setUp) String() string {
	return fmt.Sprintf("callers=%d/away=%gms/pool=%s/traffic=%s", u.callers, u.away.Seconds()*1000, u.pool, u.traffic.name)
}

// A result is what was measured of a limiter.
type result struct {
	rounds []figures
	perKey int64 // bytes in Redis
}

// Figures are those of one limiter in one round. All but the first are of a decision.
type figures struct {
	decisions      int
	each           time.Duration // the inverse of the throughput
	p50, p99       time.Duration // how long callers waited
	client, server time.Duration // of processors
	allocs         float64
}

// measure returns the results of the columns, in their order: nil for a limiter that cannot have the
// traffic, or that failed. The first round is not counted: it makes connections, and grows what grows.
func (u setUp) measure(ctx context.Context, s *server.Server, addr string, o options) ([]*result, error) {
	if err := s.Admin.FlushAll(ctx).Err(); err != nil {
		return nil, err
	}
	results := make([]*result, len(o.columns))
	limiters := make([]*limiter, len(o.columns))
	var failures []error
	failed := func(i int, err error) {
		results[i], limiters[i] = nil, nil
		failures = append(failures, fmt.Errorf("%v/column=%s: %w", u, o.columns[i], err))
	}
	for i, name := range o.columns {
		if !u.traffic.has(name) {
			continue
		}
		l, err := u.open(ctx, s, addr, i, dials()[name])
		if l != nil {
			defer l.end()
		}
		if err != nil {
			failed(i, err)
			continue
		}
		limiters[i], results[i] = l, &result{perKey: l.perKey}
	}
	for round := range o.rounds + 1 {
		for i, l := range limiters {
			if l == nil {
				continue
			}
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			f, err := l.measure(ctx, s, o.round)
			if err != nil {
				failed(i, err)
				continue
			}
			if round > 0 {
				results[i].rounds = append(results[i].rounds, f)
			}
		}
	}
	return results, errors.Join(failures...)
}

// A limiter is one that callers ask.
type limiter struct {
	allow   peers.Allow
	end     func()
	callers []*caller
	perKey  int64
}

// A caller asks for its keys in turn, and notes how long it waited.
type caller struct {
	keys []string
	want bool
	took []time.Duration
	all  time.Duration // from the begin of the round to the last answer
	err  error
}

// keysPerCaller is the number of keys that a caller has of its own.
const keysPerCaller = 16

// open connects a limiter and meets its keys. The column has a number, so that no limiter meets keys of
// another.
func (u setUp) open(ctx context.Context, s *server.Server, addr string, column int, dial peers.Dial) (*limiter, error) {
	conns := 0
	if u.pool == "callers" {
		conns = u.callers
	}
	allow, end, err := dial(peers.Address{Addr: addr, Conns: conns}, u.traffic.limit)
	if err != nil {
		return nil, err
	}
	l := &limiter{allow: allow, end: end}
	for range u.callers {
		l.callers = append(l.callers, &caller{want: u.traffic.grant})
	}
	name := func(i int) string { return fmt.Sprintf("%c%015x", 'a'+column, i) }
	for i, c := range l.callers {
		if !u.traffic.own {
			c.keys = []string{name(0)}
			continue
		}
		for k := range keysPerCaller {
			c.keys = append(c.keys, name(i*keysPerCaller+k))
		}
	}
	if err := expect(allow, name(0), true); err != nil {
		return l, err
	}
	l.perKey, err = memory(ctx, s, name(0))
	return l, err
}

// memory returns how many bytes of the server's memory a key has, whatever it is called there.
func memory(ctx context.Context, s *server.Server, key string) (int64, error) {
	names, err := s.Admin.Keys(ctx, "*"+key+"*").Result()
	if err != nil {
		return 0, err
	}
	if len(names) != 1 {
		return 0, fmt.Errorf("the server has the key %q as %q", key, names)
	}
	return s.Admin.MemoryUsage(ctx, names[0]).Result()
}

// measure lets all callers ask for a while.
func (l *limiter) measure(ctx context.Context, s *server.Server, round time.Duration) (figures, error) {
	runtime.GC() // so that what others left does not count
	var begin time.Time
	gate := make(chan struct{})
	var all sync.WaitGroup
	for _, c := range l.callers {
		all.Go(func() {
			<-gate
			c.ask(l.allow, begin, round)
		})
	}
	serverBefore, err := s.CPUTime(ctx)
	clientBefore, mallocsBefore := processorTime(), mallocs()
	begin = time.Now()
	close(gate)
	all.Wait()
	client, allocs := processorTime()-clientBefore, mallocs()-mallocsBefore
	serverAfter, errAfter := s.CPUTime(ctx)
	if err := errors.Join(err, errAfter); err != nil {
		return figures{}, err
	}
	var took []time.Duration
	perNanosecond := 0.0 // decisions of all callers, each in its own time
	for _, c := range l.callers {
		if c.err != nil {
			return figures{}, c.err
		}
		took = append(took, c.took...)
		perNanosecond += float64(len(c.took)) / float64(c.all)
	}
	slices.Sort(took)
	n := len(took)
	return figures{
		decisions: n,
		each:      time.Duration(1 / perNanosecond),
		p50:       took[n/2],
		p99:       took[n*99/100],
		client:    client / time.Duration(n),
		server:    (serverAfter - serverBefore) / time.Duration(n),
		allocs:    float64(allocs) / float64(n),
	}, nil
}

// ask asks until the round is over, and at least once.
func (c *caller) ask(allow peers.Allow, begin time.Time, round time.Duration) {
	c.took = c.took[:0]
	for last := time.Duration(0); last < round; {
		c.err = expect(allow, c.keys[len(c.took)%len(c.keys)], c.want)
		if c.err != nil {
			return
		}
		now := time.Since(begin)
		c.took = append(c.took, now-last)
		last, c.all = now, now
	}
}

// expect asks for an event of a key, and returns an error if the answer is not the expected one.
func expect(allow peers.Allow, key string, want bool) error {
	granted, err := allow(key)
	if err == nil && granted != want {
		err = fmt.Errorf("the answer for the key %q is %t", key, granted)
	}
	return err
}

// processorTime returns how long this process has used processors.
func processorTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // cannot fail
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// mallocs returns how often this process has allocated.
func mallocs() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs
}
