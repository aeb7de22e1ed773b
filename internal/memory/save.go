package memory

import (
	"io"
	"maps"
	"slices"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/internal/timeline"
)

// This file writes the states of limiters with names to a file, and restores them. A shard is
// locked while its states are copied, and not while they are written.

// Prepare draws secrets that can be saved. It is called before the store is used.
func (s *Store) Prepare() {
	s.draw()
	s.saves = true
}

// Restore lets the store have the secrets of a file. It is called before the store is used.
func (s *Store) Restore(saved *Saved) { s.identifier = saved.secrets }

// Saves reports whether Prepare or Restore was called, so that the store can be saved.
func (s *Store) Saves() bool { return s.saves }

// Save writes the states of the limiters with these names, and what is left of saved, whose
// limiters were not opened yet. Idle keys are left out.
func (s *Store) Save(to io.Writer, named map[string]*States, saved *Saved) error {
	clk := s.time.Load() // nil if no limiter has asked for the time
	w := newFileWriter(to, &s.identifier)
	for _, name := range slices.Sorted(maps.Keys(named)) {
		w.text(recordLimiter, []byte(name))
		for sh := range named[name].Space.shards(0) {
			for _, some := range named[name].Space.copyStates(sh, clk) {
				w.states(some)
			}
		}
	}
	at, isSystem := timeOf(clk), true
	switch {
	case clk != nil:
		isSystem = clk.IsOfSystem()
	case saved != nil:
		at, isSystem = saved.At, saved.IsSystem
	}
	if saved != nil {
		saved.Trim(at, 0)
		for _, name := range slices.Sorted(maps.Keys(saved.limiters)) {
			w.text(recordLimiter, []byte(name))
			for _, some := range saved.limiters[name] {
				w.states(some)
			}
		}
	}
	return w.close(isSystem, at)
}

// timeOf returns the time of clk, or 0 without one: then no state is idle.
func timeOf(clk *timeline.Timeline) (now kernel.Instant) {
	if clk != nil {
		now, _ = clk.Now()
	}
	return now
}

// mostCopied is the most words that are copied while a shard is locked, and of one state that is
// copied together with others.
const mostCopied = 1 << 14

// copyStates returns the states of a shard that are in use, by what left them. If they are large,
// it copies them one by one, and lets others have the shard in between.
func (sp *Space) copyStates(sh *shard, clk *timeline.Timeline) (all []savedStates) {
	now := timeOf(clk)
	found, words := copies{}, 0
	var left []identity
	room := new([1]uint64)
	sh.mu.Lock()
	t := sp.current(sh)
	for at := range t.held() {
		ls := lockedSlot{sp, sh, t, at}
		k, st := ls.read(room)
		switch {
		case k.FreshIn(st) <= now:
		case words+len(st.Words) > mostCopied && len(st.Words) > 1:
			left = append(left, t.id(at))
		default:
			words += len(st.Words)
			found.add(k, t.id(at), st)
		}
	}
	sh.mu.Unlock()
	for _, id := range left {
		k, st := sp.copyState(id)
		if k != nil {
			found.add(k, id, st)
		}
	}
	for _, some := range found {
		all = append(all, *some)
	}
	return all
}

// copyState returns a copy of the state of a key, or nil if the key was forgotten meanwhile.
func (sp *Space) copyState(id identity) (k *step.Machine, st step.State) {
	sh, t := sp.lock(id)
	defer sh.mu.Unlock()
	at, held := t.find(id)
	if !held {
		return nil, st
	}
	ls := lockedSlot{sp, sh, t, at}
	k, st = ls.read(new([1]uint64))
	return k, st.Clone()
}

// copies are states by what left them, and by their form.
type copies map[savedKind]*savedStates

type savedKind struct {
	by   *step.Machine
	form step.Form
}

func (c copies) add(k *step.Machine, id identity, st step.State) {
	kind := savedKind{k, st.Form}
	some := c[kind]
	if some == nil {
		some = &savedStates{savedHeader: &savedHeader{header: limit.Header(k, kind.form)}}
		if !k.Varies {
			some.form = formWord
		}
		c[kind] = some
	}
	if k.Width() == 0 || !st.IsPlain() {
		st = k.PackIn(st.Clone())
	}
	if some.form == formWide && !k.ValidIn(st) {
		return // or Load would refuse all others with it
	}
	some.count++
	some.states = appendState(some.states, id, k, st)
}

// Clone returns a copy of s, which may lose limiters while the copy is saved.
func (s *Saved) Clone() *Saved {
	if s == nil {
		return nil
	}
	clone := *s
	clone.limiters = maps.Clone(s.limiters)
	for name, some := range clone.limiters {
		clone.limiters[name] = slices.Clone(some)
	}
	return &clone
}

// each calls f with each state, which f must not keep, and its bytes in the file.
func (s *savedStates) each(f func(id identity, st step.State, raw []byte)) {
	r := fileReader{rest: s.states}
	var room [roomWords]uint64
	for range s.count {
		before := r.rest
		id, st := r.state(s.savedHeader, s.form, room[:])
		f(id, st, before[:len(before)-len(r.rest)])
	}
}

// keep leaves only those states for which keeps is true.
func (s *savedStates) keep(keeps func(id identity, st step.State) bool) {
	var kept []byte
	count := 0
	s.each(func(id identity, st step.State, raw []byte) {
		if keeps(id, st) {
			kept, count = append(kept, raw...), count+1
		}
	})
	s.states, s.count = kept, count
}

// Trim removes the states that are idle, and so many others that no more than most are left, if
// that is not 0: those that eviction would take first. It returns the number of these.
func (s *Saved) Trim(now kernel.Instant, most int) (evicted int) {
	count := 0
	for _, some := range s.limiters {
		for i := range some {
			by := some[i].by[some[i].form]
			some[i].keep(func(_ identity, st step.State) bool { return by.FreshIn(st) > now })
			count += some[i].count
		}
	}
	if most == 0 || count <= most {
		return 0
	}
	count -= s.dropDoubles()
	if count <= most {
		return 0
	}
	ranks := make([]candidate, 0, count)
	for _, name := range slices.Sorted(maps.Keys(s.limiters)) {
		for _, some := range s.limiters[name] {
			by := some.by[some.form]
			some.each(func(_ identity, st step.State, _ []byte) {
				ranks = append(ranks, candidateOf(by, st, now))
			})
		}
	}
	last := slices.SortedFunc(slices.Values(ranks), candidate.compare)[most-1]
	equals := most // how many of those that equal the last one stay
	for _, c := range ranks {
		if c.compare(last) < 0 {
			equals--
		}
	}
	at := 0 // of a state in ranks
	for _, name := range slices.Sorted(maps.Keys(s.limiters)) {
		for i := range s.limiters[name] {
			s.limiters[name][i].keep(func(identity, step.State) bool {
				order := ranks[at].compare(last)
				at++
				if order == 0 {
					equals--
				}
				return order < 0 || order == 0 && equals >= 0
			})
		}
	}
	return count - most
}

// dropDoubles drops states of keys that come again, and returns how many: if a shard was split
// while it was saved, a file has some of its keys twice. The later state counts.
func (s *Saved) dropDoubles() (dropped int) {
	for _, some := range s.limiters {
		times := map[identity]int{}
		for i := range some {
			some[i].each(func(id identity, _ step.State, _ []byte) { times[id]++ })
		}
		for i := range some {
			some[i].keep(func(id identity, _ step.State) bool {
				times[id]--
				if times[id] > 0 {
					dropped++
				}
				return times[id] == 0
			})
		}
	}
	return dropped
}

// CountEvicted counts keys that were evicted before they were restored.
func (s *Store) CountEvicted(keys int) { s.evicted.Add(uint64(keys)) }

// RestoreStates gives the states of a limiter with a name back that saved has, and takes them from
// saved. The limiter has just been opened, so that nobody uses its space.
func (ss *States) RestoreStates(saved *Saved, name string) {
	some := saved.limiters[name]
	delete(saved.limiters, name)
	sp := ss.Space
	for i := range some {
		s := &some[i]
		isOwn := ss.Limit.Has(s.header)
		by, left := s.by[formWide], s.by[s.form]
		if isOwn {
			by = sp.base.loose
		}
		isWord := s.form == formWord && isOwn && sp.word != nil
		s.each(func(id identity, st step.State, _ []byte) {
			if s.form == formWord && !isWord {
				wide := left.Word().Widen(st.Words[0])
				st = step.PlainState(wide[:])
			}
			sp.restore(id, by, st, isWord)
		})
	}
}

// restore puts a state into a space that nobody uses yet: a word of its limit, or one that by left.
// Of a key that comes twice, the later state counts. If other limiters have taken the places
// meanwhile, the key is evicted.
func (sp *Space) restore(id identity, by *step.Machine, st step.State, isWord bool) {
	sh, t := sp.lock(id)
	if sh.used+1 > t.most {
		sp.replaceTable(sh, t, 1)
		sh.mu.Unlock()
		sh, t = sp.lock(id)
	}
	defer sh.mu.Unlock()
	at, held := t.find(id)
	if !held && !sp.claimPlace() {
		sp.store.evicted.Add(1)
		return
	}
	ls := lockedSlot{sp, sh, t, at}
	switch {
	case !isWord:
		ls.put(by, st)
	case held:
		ls.putWord(sp.base, st.Words[0])
	default:
		*t.word(at) = st.Words[0]
	}
	if !held {
		ls.fill(id, 0)
	}
}
