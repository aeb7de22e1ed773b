package memory

import (
	"cmp"
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

// Save writes the states of the limiters with these names, and what is left of saved, whose
// limiters were not opened yet. Idle keys are left out.
func (s *Store) Save(to io.Writer, named map[string]*States, saved *Saved) error {
	clk := s.time.Load()
	if clk == nil && len(named) > 0 {
		clk = timeline.New(nil, nil) // no keys
	}
	w := newFileWriter(to, &s.identifier)
	for _, name := range slices.Sorted(maps.Keys(named)) {
		w.text(recordLimiter, []byte(name))
		for sh := range named[name].Space.shards(0) {
			for _, some := range named[name].Space.copyStates(sh, clk) {
				w.states(some.header, some.form, some.count, some.states)
			}
		}
	}
	if saved != nil {
		for _, name := range slices.Sorted(maps.Keys(saved.limiters)) {
			w.text(recordLimiter, []byte(name))
			for _, some := range saved.limiters[name] {
				w.states(some.header, some.form, some.count, some.states)
			}
		}
	}
	var at kernel.Instant
	isSystem := true
	switch {
	case clk != nil:
		at, _ = clk.Now()
		isSystem = clk.Tells(nil)
	case saved != nil:
		at, isSystem = saved.At, saved.IsSystem
	}
	return w.close(isSystem, at)
}

// copyStates returns the states of a shard that are in use, by what left them.
func (sp *Space) copyStates(sh *shard, clk *timeline.Timeline) (all []savedStates) {
	now, _ := clk.Now()
	found := map[*step.Machine]*savedStates{}
	room := new([1]uint64)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	t := sp.current(sh)
	for at := range t.held() {
		ls := lockedSlot{sp, sh, t, at}
		k, st := ls.read(room)
		if k.Fresh(st) <= now {
			continue
		}
		some := found[k]
		if some == nil {
			some = &savedStates{header: limit.Header(k)}
			if !k.Varies {
				some.form = formWord
			}
			found[k] = some
		}
		if k.Width() == 0 {
			st = k.Pack(slices.Clone(st))
		}
		some.count++
		some.states = appendState(some.states, t.id(at), k, st)
	}
	for _, some := range found {
		all = append(all, *some)
	}
	return all
}

// Restore lets the store have the secrets of a file. It has no space yet.
func (s *Store) Restore(saved *Saved) { s.identifier, s.isRestored = saved.secrets, true }

// Clone returns a copy of s, which may lose limiters while the copy is saved.
func (s *Saved) Clone() *Saved {
	if s == nil {
		return nil
	}
	clone := *s
	clone.limiters = maps.Clone(s.limiters)
	return &clone
}

// RestoreStates gives the states of a limiter with a name back that saved has, and takes them from
// saved. The limiter has just been opened, so that nobody uses its space.
func (ss *States) RestoreStates(saved *Saved, name string) error {
	some, sp := saved.limiters[name], ss.Space
	delete(saved.limiters, name)
	count := 0
	for i := range some {
		count += some[i].count
	}
	most := sp.store.MaxKeys
	if free := int(max(0, most-sp.store.held.Load())); most > 0 && count > free {
		return ss.restoreFew(some, saved.At, free)
	}
	for i := range some {
		err := ss.read(&some[i], func(one *restored) { sp.restore(one) })
		if err != nil {
			return err
		}
	}
	return nil
}

// restoreFew restores only a number of states: those with the fewest events remaining, as eviction
// would leave them.
func (ss *States) restoreFew(some []savedStates, at kernel.Instant, most int) error {
	byID := map[identity]restored{}
	for i := range some {
		err := ss.read(&some[i], func(one *restored) {
			one.st = slices.Clone(one.st)
			byID[one.id] = *one
		})
		if err != nil {
			return err
		}
	}
	all := slices.SortedFunc(maps.Values(byID), func(a, b restored) int {
		return cmp.Compare(a.remaining(at), b.remaining(at))
	})
	few := all[:min(most, len(all))]
	ss.Space.store.evicted.Add(uint64(len(all) - len(few)))
	for i := range few {
		ss.Space.restore(&few[i])
	}
	return nil
}

// A restored is a state of a file.
type restored struct {
	id     identity
	by     *step.Machine
	st     []uint64
	isWord bool // whether it is a word of the limit of the space
}

func (one *restored) remaining(at kernel.Instant) int { return one.by.Remaining(one.st, at) }

// read calls f with states, as ss has them: f must not keep the words. An error is that of another
// version of this package.
func (ss *States) read(states *savedStates, f func(*restored)) error {
	by, err := limit.MachineOf(states.header)
	if err != nil {
		return err
	}
	sp, isOwn := ss.Space, ss.Limit.Has(states.header)
	if isOwn {
		by = limit.Versioned(sp.base.loose, states.header)
	}
	one, left := restored{by: by}, by
	if states.form == formWord {
		left = limit.WordsOf(by)
		one.isWord = isOwn && sp.word != nil
	}
	if one.isWord {
		one.by = left
	}
	r := fileReader{rest: states.states}
	var room [roomWords]uint64
	for range states.count {
		one.id, one.st = r.state(left, room[:])
		if left != one.by {
			words := left.Word().Widen(one.st[0])
			one.st = words[:]
		}
		f(&one)
	}
	return nil
}

// restore puts a state into a space that nobody uses yet. If a shard was split while it was saved,
// a file has some of its keys twice: then the later one counts.
func (sp *Space) restore(one *restored) {
	sh, t := sp.lock(one.id)
	if sh.used+1 > t.most {
		sp.replaceTable(sh, t, 1)
		sh.mu.Unlock()
		sh, t = sp.lock(one.id)
	}
	defer sh.mu.Unlock()
	at, held := t.find(one.id)
	if !held && !sp.claimPlace() {
		return
	}
	ls := lockedSlot{sp, sh, t, at}
	switch {
	case !one.isWord:
		ls.put(one.by, one.st)
	case held:
		ls.putWord(sp.base, one.st[0])
	default:
		*t.word(at) = one.st[0]
	}
	if !held {
		ls.fill(one.id, 0)
	}
}
