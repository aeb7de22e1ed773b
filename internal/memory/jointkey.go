package memory

import (
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

// A jointKey is a key that a joint decides on. Its Answer says what this key does; what all keys do
// is up to the caller. If the request is denied, Allowed is whether this key would have granted it.
type jointKey struct {
	*limit.Call
	space *Space
	lim   *Limit
	id    identity

	// For one attempt:
	clock  step.Reading
	slot   lockedSlot // of the key or, if that is new, where it is to be
	found  bool
	enters bool // whether it is new, and its state changes

	// decides is the kernel that decides: for words, if word is set.
	decides *step.Machine

	// word is the state, if that is to be one word before and after the decision; else nil.
	word  *uint64
	owned [1]uint64 // what word was, and then what replaces it

	// The state before the decision, and the kernel that left it. A state of one word is in owned.
	k  *step.Machine
	st step.State
}

// locate finds the slot of the key, and makes room for what the request may leave there. It returns
// false if the table has been replaced or swept, so that the keys of the joint may be elsewhere.
// keys is their number.
func (jk *jointKey) locate(keys uint32) (ok bool) {
	ls := &jk.slot
	if jk.space.heavy(ls.shard) {
		jk.space.replaceTable(ls.shard, ls.table, 1)
		return false
	}
	ls.at, jk.found = ls.table.find(jk.id)
	jk.word, jk.decides = nil, jk.lim.loose
	if jk.found {
		return jk.locateKnown(keys)
	}
	return jk.locateNew(keys)
}

// locateKnown is locate for a key that has a slot.
func (jk *jointKey) locateKnown(keys uint32) (ok bool) {
	ls, opens := &jk.slot, jk.Request.Opens()
	fits, same := jk.lim.fitsWord(&jk.Request), ls.limit() == jk.lim
	if fits && !same && ls.shard.used+keys > ls.table.most {
		// If the state becomes a word, it needs another slot.
		jk.space.replaceTable(ls.shard, ls.table, keys)
		return false
	}
	word, refers := ls.table.refers(ls.at)
	if fits && same && !refers {
		jk.decideOnWord()
		return true
	}
	if !refers && (ls.table.width == 1 || opens) {
		word, refers = ls.moveToArena(opens), true
	}
	if refers {
		states := ls.shard.arena
		states.grow(states.record(word), jk.Request.N, opens)
	}
	return true
}

// locateNew is locate for a key that has no slot yet.
func (jk *jointKey) locateNew(keys uint32) (ok bool) {
	ls := &jk.slot
	if jk.lim.fitsWord(&jk.Request) {
		jk.decideOnWord()
	}
	if !jk.mayEnter() || !ls.shard.crowded(ls.table, keys) {
		return true
	}
	if jk.clock.Now == 0 {
		// Once only: a clock that leaps on each reading would let each attempt sweep.
		jk.clock.Now, _ = jk.Request.Clock.Now()
	}
	swept, replaced := jk.space.makeRoomForKeys(ls.shard, ls.table, keys, jk.clock.Now)
	return !swept && !replaced
}

// decideOnWord has the decision made on the word in the slot.
func (jk *jointKey) decideOnWord() {
	jk.word, jk.decides = jk.slot.table.word(jk.slot.at), jk.lim.k
}

// moveToArena moves the state of a slot to the arena, with room for a hold if opens is true. It
// returns the word that refers to the state.
func (ls *lockedSlot) moveToArena(opens bool) (word uint64) {
	k, st := ls.space.base.loose, step.PlainState(ls.table.state(ls.at))
	if ls.table.width == 1 {
		k, st = ls.limit().widen(atomic.SwapUint64(ls.table.word(ls.at), gone)) // guarantee 3
	}
	states := ls.shard.states()
	st.Words = states.draftCopy(k, st.Words, opens)
	word = states.add(k, st)
	ls.table.refer(ls.at, word)
	return word
}

// mayEnter reports whether the request may change the state of a new key.
func (jk *jointKey) mayEnter() bool {
	return jk.Request.N > 0 && jk.Request.N <= jk.decides.Limit()
}

// ownState reads the state of the key, and owns it.
func (jk *jointKey) ownState() {
	switch {
	case jk.word != nil:
		jk.owned[0], jk.k, jk.st = 0, jk.decides, step.PlainState(jk.owned[:])
		if jk.found {
			jk.owned[0] = atomic.SwapUint64(jk.word, gone) // guarantee 3
		}
	case jk.found:
		jk.k, jk.st = jk.slot.read(nil)
	default:
		jk.k, jk.st = jk.decides, step.PlainState(jk.decides.NewState())
	}
}

// disownState puts back a word that was not replaced: nothing was decided, or the user's clock has
// panicked.
func (jk *jointKey) disownState() {
	if jk.found && jk.word != nil {
		atomic.CompareAndSwapUint64(jk.word, gone, jk.owned[0])
	}
}

// mayBecomeWord reports whether the state of a known key is in the arena, or a word of another
// limit, and may have an equal that is a word of the limit.
func (jk *jointKey) mayBecomeWord() bool {
	return jk.found && jk.word == nil && jk.st.IsPlain() && jk.lim.fitsWord(&jk.Request)
}

// step applies a request, which is that of the key with its time fixed, and stores the next state.
// granted is whether all keys grant their events.
func (jk *jointKey) step(req *step.Request, granted bool) {
	if granted && jk.mayBecomeWord() {
		next, ok := jk.lim.stepToWord(jk.k, jk.st, req, &jk.Answer)
		if ok {
			jk.slot.putWord(jk.lim, next)
			return
		}
	}
	k, st, _ := jk.decides.StepFrom(jk.k, jk.st, req, &jk.Answer)
	jk.space.store.countEnded(&jk.Answer)
	if !jk.found && !jk.enters {
		return
	}
	ls := &jk.slot
	if jk.enters {
		ls.at, _ = ls.table.find(jk.id) // another key of the joint may have taken the slot
	}
	if jk.word != nil {
		atomic.StoreUint64(ls.table.word(ls.at), st.Words[0])
	} else {
		ls.put(k, st)
	}
	if jk.enters {
		ls.fill(jk.id, jk.lim.number)
		ls.shard.inserts++
		if jk.space.store.MaxKeys > 0 {
			jk.space.keys.Add(1)
		}
		jk.space.store.keepTime(req.Clock)
	}
}
