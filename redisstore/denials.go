package redisstore

import (
	"sync"

	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/redisstore/internal/script"
)

// After a denial, the process knows the state of the key. Until something is given back,
// other processes can only make it worse: a request that this state denies, the server
// would deny. So the store keeps the state, and applies the same limit to it at the
// current time of the server's clock. If that denies a request, no call is needed.

// A denial is a state on which a request was denied.
type denial struct {
	prog *program
	n    int // the events that were denied
	snapshot
}

// denials are the latest denials, by key.
type denials [shards]struct {
	mu     sync.RWMutex
	recent recent[denial]
	epoch  uint64 // counts calls of forget
}

// Two clocks may drift apart by 1/drift of the time that passes. NTP permits half of
// that.
const drift = 1000

// denied returns the denial of req if it is known without a call.
func (s *Store) denied(name name, prog *program, req step.Request) (d step.Decision, ok bool) {
	n := req.Least()
	switch req.Op {
	case step.OpTake, step.OpPeek, step.OpHold:
	default:
		return d, false
	}
	if s.denialAge == 0 || !prog.Cacheable || n == 0 {
		return d, false
	}
	shard := &s.denials[name.shard()]
	shard.mu.RLock()
	last, ok := shard.recent.get(name.text)
	shard.mu.RUnlock()
	if !ok || last.prog != prog || prog.Partial && last.n != n {
		return d, false
	}
	now := s.elapsed()
	age := now - last.received
	if age > s.denialAge {
		return d, false
	}
	// The server's clock now shows at least its reading plus the time since the reply was
	// received, and at most its reading plus the time since the command was sent. The
	// denial is computed for the earliest time, and used if it holds at the latest.
	early := last.time.Add(age - age/drift)
	unsure := last.received - last.sent + age/drift*2 + script.Tick
	if s.limiterClock {
		req, early = req.Read()
		unsure = 0
	} else {
		req = req.At(early)
	}
	if !last.ends.IsZero() && !early.Add(unsure).Before(last.ends) {
		return d, false // a hold may have given its events back
	}
	t, err := prog.Limit.Apply(last.state, req)
	d = t.Answer.Decision
	if err != nil || d.Allowed || d.RetryAfter <= unsure {
		return d, false
	}
	return d, true
}

// epoch returns how often denials in the shard of name were forgotten.
func (d *denials) epoch(name name) uint64 {
	shard := &d[name.shard()]
	shard.mu.RLock()
	defer shard.mu.RUnlock()
	return shard.epoch
}

// forget drops the denial of name, and those of replies that have not arrived yet.
func (d *denials) forget(name name) {
	shard := &d[name.shard()]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	shard.epoch++
	shard.recent.drop(name.text)
}

// cacheDenial keeps the state that calls left, if one of them was denied or if a denial of
// the key is cached already: that one is replaced by what is known now. It keeps nothing if
// forget was called since the epoch.
func (s *Store) cacheDenial(name name, epoch uint64, calls []*call, after snapshot) {
	if s.denialAge == 0 || !calls[0].prog.Cacheable {
		return
	}
	latest := denial{prog: calls[0].prog, snapshot: after}
	for _, c := range calls {
		if c.res.Allowed || c.forLease {
			continue
		}
		if op := c.op(); op == script.OpTake || op == script.OpHold || op == script.OpUpTo {
			latest.n = c.req.Least()
		}
	}
	shard := &s.denials[name.shard()]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	known, ok := shard.recent.get(name.text)
	if ok && known.time.After(after.time) {
		return // another command was faster
	}
	if latest.n == 0 {
		if !ok {
			return
		}
		latest.n = known.n
		if latest.prog.Partial || latest.prog.IsOpen(latest.state) {
			// The state may lack the entries that this n depends on, or the holds that will give
			// events back: the reply to a grant has only those that the grant needs.
			shard.recent.drop(name.text)
			return
		}
	}
	if shard.epoch == epoch {
		shard.recent.put(name.text, latest, after.received, s.denialAge)
	}
}
