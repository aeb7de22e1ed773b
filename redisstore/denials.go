package redisstore

import (
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// After a denial, the state of the key is known, and while nothing is given back
// others can only make it worse: what it refuses, the server would refuse. So it is
// kept, and requests that it refuses are answered with it, by the same arithmetic
// and at the time that the server's clock shows by now.

// A denial is the state that a request was denied on.
type denial struct {
	prog *program
	n    int // events that were asked for
	left
}

// denials are the latest ones, by key.
type denials [shards]struct {
	mu     sync.RWMutex
	recent recent[denial]
	epoch  uint64 // counts what made denials doubtful
}

// drift is by how much the clocks of two machines may differ after a time: by a
// thousandth of it. NTP lets them differ by half as much.
const drift = 1000

// denied returns the denial of req, if it needs no asking.
func (s *Store) denied(name name, prog *program, req ratelimit.Request) (d ratelimit.Decision, ok bool) {
	if s.denialAge == 0 || !prog.cacheable || req.Op != ratelimit.OpTake && req.Op != ratelimit.OpPeek || req.N == 0 {
		return d, false
	}
	shard := &s.denials[name.shard()]
	shard.mu.RLock()
	last, ok := shard.recent.get(name.text)
	shard.mu.RUnlock()
	if !ok || last.prog != prog || prog.partial && last.n != req.N {
		return d, false
	}
	now := s.elapsed()
	age := now - last.received
	if age > s.denialAge {
		return d, false
	}
	// The server's clock shows at least as much as when it answered and what has
	// passed since, and at most what has passed since it was asked.
	early := last.time.Add(age - age/drift)
	unsure := last.received - last.sent + age/drift*2 + tick
	if s.limiterClock {
		req, _ = req.Read()
		unsure = 0
	} else {
		req = req.At(early)
	}
	_, _, res, err := prog.t.Apply(last.state, req)
	d = res.Decision
	if err != nil || d.Allowed || d.RetryAfter <= unsure {
		return d, false
	}
	return d, true
}

// epoch returns the count of what made denials of name doubtful.
func (d *denials) epoch(name name) uint64 {
	shard := &d[name.shard()]
	shard.mu.RLock()
	defer shard.mu.RUnlock()
	return shard.epoch
}

// forget drops what is known of name, and what is on its way.
func (d *denials) forget(name name) {
	shard := &d[name.shard()]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	shard.epoch++
	shard.recent.drop(name.text)
}

// note keeps the state that calls left, if one of them was denied, or if one was
// known already: what this process was told last is what it repeats. Nothing is kept
// if anything has made it doubtful since the epoch.
func (s *Store) note(name name, epoch uint64, calls []*call, left left) {
	if s.denialAge == 0 || !calls[0].prog.cacheable {
		return
	}
	latest := denial{prog: calls[0].prog, left: left}
	for _, c := range calls {
		if c.ask() == askTake && !c.res.Decision.Allowed && !c.extra {
			latest.n = c.req.N
		}
	}
	shard := &s.denials[name.shard()]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	known, ok := shard.recent.get(name.text)
	if ok && known.time.After(left.time) {
		return // another command was faster
	}
	if latest.n == 0 {
		if !ok {
			return
		}
		latest.n = known.n
		if latest.prog.partial { // what it needs may not be there
			shard.recent.drop(name.text)
			return
		}
	}
	if shard.epoch == epoch {
		shard.recent.put(name.text, latest, left.received, s.denialAge)
	}
}

// manyRecent bounds the keys of one generation in one shard.
const manyRecent = 256

// A recent is a map that forgets what was put into it a while ago, or before many
// others: it has two generations, and when the younger is old or full, it becomes
// the elder one.
type recent[V any] struct {
	young, elder map[string]V
	born         time.Duration // when the younger generation began
}

func (r *recent[V]) get(key string) (v V, ok bool) {
	if v, ok = r.young[key]; !ok {
		v, ok = r.elder[key]
	}
	return v, ok
}

func (r *recent[V]) put(key string, v V, now, age time.Duration) {
	if r.young == nil || now-r.born > age || len(r.young) >= manyRecent {
		r.young, r.elder, r.born = make(map[string]V), r.young, now
	}
	r.young[key] = v
}

func (r *recent[V]) drop(key string) {
	delete(r.young, key)
	delete(r.elder, key)
}
