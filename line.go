package ratelimit

import (
	"context"
	"hash/maphash"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

// lines are the lines of the keys that have reservations pending. A line exists as
// long as one is.
type lines struct {
	count  atomic.Int64 // of lines
	deaths atomic.Uint64
	swept  atomic.Uint64              // shards so far, each as often as it was
	shards atomic.Pointer[lineShards] // nil until the first line: most limiters have none
}

type lineShards [16]lineShard

type lineShard struct {
	mu   sync.Mutex // protects what follows, and the lines
	keys map[string]*line
	most int // the most keys since the map was made: maps do not shrink
}

var lineSeed = maphash.MakeSeed()

func (ls *lines) shard(key string) *lineShard {
	shards := ls.all()
	return &shards[maphash.String(lineSeed, key)%uint64(len(shards))]
}

func (ls *lines) all() *lineShards {
	if ls.shards.Load() == nil {
		ls.shards.CompareAndSwap(nil, new(lineShards))
	}
	return ls.shards.Load()
}

// A line has the reservations of a key that are pending, and those that were
// cancelled while others stood behind them: see undo.go. Its lock is the shard's,
// which is never held while a store is called.
type line struct {
	waiters []*waiter // not changed in place while under is set, except at the end
	last    instant   // the latest turn
	batches uint64    // of cancellations so far
	over    bool      // whether the key was reset, or the store failed

	under *batch // the cancellation under way
	next  *batch // the one to follow
}

// A batch is the cancellations that one call of the store is for.
type batch struct {
	asked []*waiter
	done  chan struct{} // closed when it is
}

// A mark is what a line looked like before a reservation was made.
type mark struct {
	line    *line
	batches uint64
	busy    bool   // whether a cancellation was under way
	deaths  uint64 // of lines
	resets  uint64 // of keys
}

// mark is to be called before a reservation is made.
func (l *limiter) mark(key string) mark {
	m := mark{deaths: l.lines.deaths.Load(), resets: l.resets.count.Load()}
	if l.lines.count.Load() == 0 {
		return m
	}
	sh := l.lines.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if ln := sh.keys[key]; ln != nil {
		m.line, m.batches, m.busy = ln, ln.batches, ln.under != nil
	}
	return m
}

// enter puts a grant into the line of key. It returns nil if the key was reset since
// m: the grant is forgotten then.
func (l *limiter) enter(key string, g *grant, turn instant, m mark) (*line, *waiter) {
	now, _ := l.timeline.now()
	w := &waiter{grant: g, turn: turn, parts: make([]progress, len(g.traces))}
	defer l.lines.sweep(now) // when the lock is free again
	sh := l.lines.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if l.resets.since(m.resets, key) {
		return nil, nil
	}
	ln := sh.keys[key]
	switch {
	case m.busy || ln != nil && ln.under != nil:
		w.unsure = true
	case m.line != nil:
		w.unsure = ln != m.line || ln.batches != m.batches
	default:
		w.unsure = l.lines.deaths.Load() != m.deaths || ln != nil && ln.batches > 0
	}
	if ln == nil {
		ln = &line{}
		if sh.keys == nil {
			sh.keys = make(map[string]*line)
		}
		sh.keys[key] = ln
		sh.most = max(sh.most, len(sh.keys))
		l.lines.count.Add(1)
	}
	ln.insert(w, now)
	return ln, w
}

// insert puts w where it belongs, which is nearly always the end.
func (ln *line) insert(w *waiter, now instant) {
	ln.drop(now)
	i := len(ln.waiters)
	for i > 0 && w.before(ln.waiters[i-1].grant) {
		i--
	}
	if i < len(ln.waiters) && ln.under != nil {
		ln.waiters = slices.Clone(ln.waiters)
	}
	ln.waiters = slices.Insert(ln.waiters, i, w)
	ln.last = max(ln.last, w.turn)
}

// drop drops those whose turn has passed, and who stand before such: they are not
// cancelled any more, nor is anything undone beyond them.
func (ln *line) drop(now instant) {
	if ln.under != nil {
		return
	}
	gone := 0
	for i, w := range ln.waiters {
		if w.turn >= now {
			break
		}
		if !w.cancelled || ln.last < now {
			gone = i + 1
		}
	}
	ln.waiters = slices.Delete(ln.waiters, 0, gone)
}

// sweep looks at a few lines, each time in the next shard, and drops those that nobody
// stands in any more.
func (ls *lines) sweep(now instant) {
	shards := ls.all()
	sh := &shards[ls.swept.Add(1)%uint64(len(shards))]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	looks := 0
	for key, ln := range sh.keys { // in an order of chance
		if ln.last < now && ln.under == nil && ln.next == nil {
			ls.remove(sh, key)
		}
		if looks++; looks == 3 {
			break
		}
	}
	if sh.most > 64 && len(sh.keys) < sh.most/4 {
		few := make(map[string]*line, len(sh.keys))
		maps.Copy(few, sh.keys)
		sh.keys, sh.most = few, len(few)
	}
}

func (ls *lines) remove(sh *lineShard, key string) {
	delete(sh.keys, key)
	ls.count.Add(-1)
	ls.deaths.Add(1)
}

// end ends the line of key, if there is one: what stands in it is not cancelled any
// more. It waits for a cancellation under way, until ctx ends.
func (l *limiter) end(ctx context.Context, key string) {
	sh := l.lines.shard(key)
	sh.mu.Lock()
	ln := sh.keys[key]
	var under *batch
	if ln != nil {
		ln.over, under = true, ln.under
		l.lines.remove(sh, key)
	}
	sh.mu.Unlock()
	if under != nil {
		select {
		case <-under.done:
		case <-ctx.Done():
		}
	}
}

// cancel cancels a waiter: together with others, if some are being cancelled now.
func (l *limiter) cancel(key string, ln *line, w *waiter) {
	sh := l.lines.shard(key)
	sh.mu.Lock()
	b := ln.next
	leads := b == nil
	if leads {
		b = &batch{done: make(chan struct{})}
		ln.next = b
	}
	b.asked = append(b.asked, w)
	under := ln.under
	sh.mu.Unlock()
	if !leads {
		<-b.done
		return
	}
	if under != nil {
		<-under.done
	}
	l.carryOut(sh, key, ln, b)
}

// carryOut does a batch, after the one before.
func (l *limiter) carryOut(sh *lineShard, key string, ln *line, b *batch) {
	now, _ := l.timeline.now()
	sh.mu.Lock()
	defer sh.mu.Unlock()
	defer close(b.done)
	ln.next = nil
	if ln.over {
		return
	}
	ln.drop(now)
	of := ln.ask(b, now)
	if of == nil {
		return
	}
	of.local = l.local != nil && !l.local.shared()
	ln.under = b
	ln.batches++
	var out *undone
	func() {
		sh.mu.Unlock()
		defer func() {
			sh.mu.Lock()
			ln.under = nil
			if out == nil { // nobody knows what the store has done
				l.lines.close(sh, key, ln)
			}
		}()
		// The error of a store that fails is of no use to anybody here: the events
		// stay spent, which is the safe side.
		_, res, err := l.apply(context.Background(), key, Request{Op: OpCancel, Grant: of})
		if err == nil {
			out, _ = res.Grant.(*undone)
		}
	}()
	if out == nil {
		return
	}
	ln.settle(b, out)
	if len(ln.waiters) == 0 && ln.next == nil {
		l.lines.close(sh, key, ln)
	}
}

// close removes a line. Those who stand in it are not cancelled any more.
func (ls *lines) close(sh *lineShard, key string, ln *line) {
	ln.over = true
	if sh.keys[key] == ln {
		ls.remove(sh, key)
	}
}

// ask returns what the store is to be asked for, or nil if that is nothing.
func (ln *line) ask(b *batch, now instant) *cancellation {
	b.asked = slices.DeleteFunc(b.asked, func(w *waiter) bool { return w.turn < now }) // too late
	for _, w := range b.asked {
		w.asked = true
	}
	line := ln.waiters
	if len(b.asked) > 0 && b.asked[0].chained() {
		// Only the end of the line matters.
		i := len(line)
		for i > 0 && (line[i-1].cancelled || line[i-1].asked) {
			i--
		}
		line = line[i:]
		for _, w := range b.asked {
			if len(line) == 0 || w.before(line[0].grant) {
				w.asked, w.cancelled = false, true // until those behind are gone
			}
		}
	}
	if !slices.ContainsFunc(line, func(w *waiter) bool { return w.asked }) {
		return nil
	}
	return &cancellation{line: line}
}

// settle notes what came of a batch.
func (ln *line) settle(b *batch, out *undone) {
	for _, w := range b.asked {
		w.asked = false
	}
	for _, w := range out.cancelled {
		w.cancelled = true
	}
	for part, done := range out.done {
		for w, to := range done {
			if was := w.parts[part]; to.gone && !was.gone {
				ln.lessen(w, part)
			}
			to.less = w.parts[part].less
			w.parts[part] = to
		}
	}
	if len(b.asked) > 0 && b.asked[0].chained() {
		for n := len(ln.waiters); n > 0 && ln.waiters[n-1].complete(); n-- {
			ln.waiters[n-1] = nil
			ln.waiters = ln.waiters[:n-1]
		}
		return
	}
	ln.waiters = slices.DeleteFunc(ln.waiters, (*waiter).complete)
}

// lessen notes that the events of w were taken out of a part, for those that they
// were there before.
func (ln *line) lessen(w *waiter, part int) {
	slot := w.traces[part].slot
	for _, other := range slices.Backward(ln.waiters) {
		if other.at <= w.at {
			break
		}
		if len(other.traces) == len(w.traces) && other.traces[part].slot == slot {
			other.parts[part].less += uint64(w.n)
		}
	}
}

// complete reports whether nothing remains to be undone of w.
func (w *waiter) complete() bool {
	for i, to := range w.parts {
		if !to.gone || w.traces[i].raised && !to.fallen {
			return false
		}
	}
	return w.cancelled
}

// chained reports whether all parts are undone from the end of the line.
func (g *grant) chained() bool {
	for i := range g.traces {
		if g.traces[i].order == [2]uint64{} {
			return false
		}
	}
	return true
}
