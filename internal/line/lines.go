package line

import (
	"hash/maphash"
	"sync"
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// This file finds the line of a key, and locks it.

// Lines are the lines of the keys of limiters with one name, in one store. The zero Lines has none.
type Lines struct {
	count  atomic.Int64           // places, and callers that give turns back
	shards atomic.Pointer[shards] // nil until the first line

	// Took and Came belong to the limiters, and nothing here reads them. Took is how long the store
	// took to answer lately, in nanoseconds. Came is how many callers have come, for Entrant.Came.
	Took, Came atomic.Int64
}

// LinesByName has the Lines of the limiters in a store, by their names.
type LinesByName struct {
	mu     sync.Mutex // protects byName
	byName map[string]*Lines
}

// mostNamed bounds the memory of a LinesByName. If more names are used, limiters of one name that
// are made far apart have two lines.
const mostNamed = 4096

// Of returns the Lines of the limiters called name.
func (n *LinesByName) Of(name string) *Lines {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.byName == nil || len(n.byName) >= mostNamed {
		n.byName = make(map[string]*Lines)
	}
	if n.byName[name] == nil {
		n.byName[name] = new(Lines)
	}
	return n.byName[name]
}

type shards [16]shard

// A shard has the lines of some of the keys.
type shard struct {
	// mu protects the fields below, and all lines and places in the shard. It is never held while a
	// store is called.
	mu    sync.Mutex
	lines map[string]*Line // by key; nil if there are none
	late  lateness
}

var seed = maphash.MakeSeed()

func (ls *Lines) shard(key string) *shard {
	all := ls.shards.Load()
	if all == nil {
		ls.shards.CompareAndSwap(nil, new(shards))
		all = ls.shards.Load()
	}
	return &all[maphash.String(seed, key)%uint64(len(all))]
}

// Any reports whether a caller waits for any key. It is faster than the other methods.
func (ls *Lines) Any() bool { return ls.Count() > 0 }

// Count returns the number of callers that wait, for all keys, plus the number of callers that give
// turns back.
func (ls *Lines) Count() int64 { return ls.count.Load() }

// Has reports whether a caller waits for key, or turns of callers that have left are being given
// back.
func (ls *Lines) Has(key string) bool {
	ln := ls.Find(key)
	if ln == nil {
		return false
	}
	defer ln.Unlock()
	return ln.isBusy()
}

// Wake calls Wake of the line of key, if there is one.
func (ls *Lines) Wake(key string, now kernel.Instant) {
	ln := ls.Find(key)
	if ln != nil {
		defer ln.Unlock()
		ln.Wake(now)
	}
}

// Renew calls Renew of the line of key, if there is one.
func (ls *Lines) Renew(key string) {
	ln := ls.Find(key)
	if ln != nil {
		defer ln.Unlock()
		ln.Renew()
	}
}

// Find returns the line of key, locked, or nil if there is none. The caller unlocks it. Perhaps no
// place is left in the line.
func (ls *Lines) Find(key string) *Line {
	if !ls.Any() {
		return nil
	}
	sh := ls.shard(key)
	sh.mu.Lock()
	ln := sh.lines[key]
	if ln == nil {
		sh.mu.Unlock()
	}
	return ln
}

// Lock returns the line of key, locked. If there is none, Lock makes one. The caller unlocks it.
func (ls *Lines) Lock(key string) *Line {
	sh := ls.shard(key)
	sh.mu.Lock()
	ln := sh.lines[key]
	if ln != nil {
		return ln
	}
	if sh.lines == nil {
		sh.lines = make(map[string]*Line)
	}
	ln = &Line{all: ls, sh: sh, key: key, width: 1}
	sh.lines[key] = ln
	return ln
}

// Unlock unlocks the line, and forgets it if it is not used any more.
func (ln *Line) Unlock() {
	sh := ln.sh
	defer sh.mu.Unlock()
	// A caller whose place has left may come back to a line that was forgotten already. Since then,
	// other callers may have begun a new line of the key. The new line must stay: otherwise,
	// nothing would wake its callers.
	isForgotten := sh.lines[ln.key] != ln
	if isForgotten || ln.isBusy() || ln.asking > 0 {
		return
	}
	delete(sh.lines, ln.key)
	if len(sh.lines) == 0 {
		sh.lines = nil // maps do not shrink
	}
}

// BeginAsking reports whether a caller may ask for a turn of key without a place in line. If so,
// the caller asks, and then calls EndAsking. The caller may not ask if another one has a place, or
// if MostTurns callers are already asking this way.
func (ls *Lines) BeginAsking(key string) bool {
	ln := ls.Lock(key)
	defer ln.Unlock()
	if ln.isBusy() || ln.asking >= MostTurns {
		return false
	}
	ln.asking++
	return true
}

// EndAsking says that a caller has the answer for which it called BeginAsking.
func (ls *Lines) EndAsking(key string) {
	ln := ls.Lock(key)
	defer ln.Unlock()
	ln.asking--
	ln.wake()
}

// Cancelled says that the turns that Line.Outdated has returned, for the line of key, have been
// given back.
func (ls *Lines) Cancelled(key string) {
	ln := ls.Lock(key)
	defer ln.Unlock()
	ln.cancelled()
}

// Behind is Place.Next for a caller that does not stand in the line of key, but runs. The caller is
// to ask for the turn of the next place, if this place has the given terms and its turn may have
// come. Otherwise the Move is to rest. Until the caller has called Taken or InVain of the place,
// nobody else asks, and the place cannot leave. So the caller must not wait for anything meanwhile,
// such as a lookup.
func (ls *Lines) Behind(key string, by any, now kernel.Instant) Move {
	ln := ls.Find(key)
	if ln == nil {
		return Move{Do: Rest}
	}
	defer ln.Unlock()
	p := ln.nextStaying()
	if p == nil || p.asksItself || p.By != by || ln.mayAsk(p, now, 0) > 0 {
		return Move{Do: Rest}
	}
	return ln.ask(p, AskedByOther, ln.From(now), now)
}
