package ratelimit

import (
	"context"
	"hash/maphash"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/limit"
)

// When a waiter in the middle of a line leaves, those behind it keep the times that they
// were told. Windows and logs give its events back at once, buckets once all behind it
// have left: see [Reservation.Cancel]. internal/kernel computes that; here is what several
// callers at once need.

// lines are the lines of keys with pending reservations. A line exists as long as a
// reservation of its key is pending.
type lines struct {
	count  atomic.Int64               // lines that exist
	deaths atomic.Uint64              // lines removed so far
	swept  atomic.Uint64              // calls of sweep so far
	shards atomic.Pointer[lineShards] // nil until the first line: most limiters have none
}

type lineShards [16]lineShard

type lineShard struct {
	mu   sync.Mutex // protects keys, their lines, and most
	keys map[string]*pendingLine
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

// A pendingLine is the line of reservations of a key. Its shard's lock protects it. That lock is
// never held during a call of a store.
type pendingLine struct {
	kernel.Line
	batches uint64 // batches of cancellations so far
	over    bool   // whether the line was closed: all have left, a reset, or a failed store

	under *batch // the batch being carried out, or nil
	next  *batch // the batch after it, or nil
}

// A batch consists of cancellations that share one call of the store.
type batch struct {
	asked []*kernel.Waiter
	by    []*limit.Limit // those that reserved for them, usually one
	done  chan struct{}  // closed when the batch is done
	err   error          // of the store, if it failed in between; set before done is closed
}

// A mark records the state of a line before a reservation is made.
type mark struct {
	line    *pendingLine
	batches uint64
	busy    bool   // whether a batch was being carried out
	deaths  uint64 // lines.deaths
	resets  uint64 // resets.count
}

// mark must be called before a reservation is made.
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

// enter puts a grant into the line of key. If the key was reset since m, enter drops
// the grant and returns nil.
func (l *limiter) enter(key string, g *kernel.Grant, turn kernel.Instant, m mark) (*pendingLine, *kernel.Waiter) {
	now, _ := l.timeline.Now()
	defer l.lines.sweep(now) // after the lock is released
	sh := l.lines.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if l.resets.since(m.resets, key) {
		return nil, nil
	}
	ln := sh.keys[key]
	var unsure bool // whether a cancellation may have happened between the making of g and now
	switch {
	case m.busy || ln != nil && ln.under != nil:
		unsure = true
	case m.line != nil:
		unsure = ln != m.line || ln.batches != m.batches
	default:
		unsure = l.lines.deaths.Load() != m.deaths || ln != nil && ln.batches > 0
	}
	if ln == nil {
		ln = &pendingLine{}
		if sh.keys == nil {
			sh.keys = make(map[string]*pendingLine)
		}
		sh.keys[key] = ln
		sh.most = max(sh.most, len(sh.keys))
		l.lines.count.Add(1)
	}
	w := kernel.NewWaiter(g, turn, unsure)
	ln.Insert(w, now)
	return ln, w
}

// sweep checks a few lines of one shard, each time the next one, and removes those in
// which no reservation is pending.
func (ls *lines) sweep(now kernel.Instant) {
	shards := ls.all()
	sh := &shards[ls.swept.Add(1)%uint64(len(shards))]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	looks := 0
	for key, ln := range sh.keys { // in random order
		if ln.Over(now) && ln.under == nil && ln.next == nil {
			ls.remove(sh, key)
		}
		if looks++; looks == 3 {
			break
		}
	}
	if sh.most > 64 && len(sh.keys) < sh.most/4 {
		few := make(map[string]*pendingLine, len(sh.keys))
		maps.Copy(few, sh.keys)
		sh.keys, sh.most = few, len(few)
	}
}

func (ls *lines) remove(sh *lineShard, key string) {
	delete(sh.keys, key)
	ls.count.Add(-1)
	ls.deaths.Add(1)
}

// end closes the line of key, if there is one: its reservations can no longer be
// cancelled. It waits for a cancellation in progress, until ctx ends.
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

// cancel cancels reservations in a line. Those that are cancelled during another cancellation of the key
// are cancelled together, after it. The error is that of the store.
func (l *limiter) cancel(key string, ln *pendingLine, rs []*Reservation) error {
	sh := l.lines.shard(key)
	sh.mu.Lock()
	b := ln.next
	leads := b == nil
	if leads {
		b = &batch{done: make(chan struct{})}
		ln.next = b
	}
	for _, r := range rs {
		b.asked = append(b.asked, r.waiter)
		if !slices.Contains(b.by, r.by) {
			b.by = append(b.by, r.by)
		}
	}
	under := ln.under
	sh.mu.Unlock()
	if !leads {
		<-b.done
		return b.err
	}
	if under != nil {
		<-under.done
	}
	l.carryOut(sh, key, ln, b)
	return b.err
}

// manyTogether bounds the cancellations in one call of the store, so that a long batch does
// not exceed the timeout of a call: with 10,000 reservations of an All of four pending, such a
// call usually takes Redis 1 to 5 ms. The call for the last reservation of a line takes longer,
// because it undoes what could not be undone before: 1 to 3 ms for each thousand.
const manyTogether = 200

// carryOut carries out a batch. The previous one must be done.
func (l *limiter) carryOut(sh *lineShard, key string, ln *pendingLine, b *batch) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	defer close(b.done)
	ln.next, ln.under = nil, b
	defer func() { ln.under = nil }()
	// From the end of the line, because buckets are undone from there.
	kernel.SortLine(b.asked)
	together := manyTogether
	for from := len(b.asked); from > 0 && !ln.over; {
		to := from
		from = max(0, to-together)
		if err := l.carryOutSome(sh, key, ln, b.by, b.asked[from:to]); err != nil {
			b.err = err
			together = from // the rest at once, so that a batch does not wait for many timeouts
		}
	}
	if ln.Len() == 0 && ln.next == nil {
		l.lines.close(sh, key, ln)
	}
}

// carryOutSome cancels some waiters of a batch in one call of the store. The caller holds the
// lock of sh, which carryOutSome releases during the call. The error is that of the call.
func (l *limiter) carryOutSome(sh *lineShard, key string, ln *pendingLine, by []*limit.Limit, asked []*kernel.Waiter) (err error) {
	now, _ := l.timeline.Now()
	cancellation := ln.Cancel(asked, now)
	if cancellation == nil {
		return nil
	}
	cancellation.Local = l.local != nil && !l.local.Shared.Load()
	ln.batches++
	var out *kernel.Undone
	sh.mu.Unlock()
	defer func() {
		sh.mu.Lock()
		ln.Release()
		switch {
		case out != nil:
			ln.Settle(cancellation, out)
		case !ln.Forsake(cancellation): // the store may or may not have cancelled
			l.lines.close(sh, key, ln)
		}
	}()
	out, err = l.undo(key, by, cancellation)
	return err
}

// undo has the store carry out a cancellation of reservations that were made by one of the
// transitions. The state is of one of them, so the call with that one does something. If a call
// fails, out is nil, and the events stay spent, which never grants too much.
func (l *limiter) undo(key string, by []*limit.Limit, c *kernel.Cancellation) (out *kernel.Undone, err error) {
	for _, t := range by {
		var res kernel.Answer
		if err = l.applyBy(context.Background(), key, t, &kernel.Request{Op: kernel.OpCancel, Grant: c}, &res); err != nil {
			return nil, err
		}
		if out, _ = res.Grant.(*kernel.Undone); out == nil || out.Any() {
			break
		}
	}
	return out, nil
}

// leave removes a waiter from its line before some of its events are given back on their own.
// It waits for a cancellation in progress, which counts on them.
func (l *limiter) leave(ctx context.Context, key string, ln *pendingLine, w *kernel.Waiter) error {
	sh := l.lines.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for ln.under != nil {
		under := ln.under
		sh.mu.Unlock()
		var err error
		select {
		case <-under.done:
		case <-ctx.Done():
			err = ctx.Err()
		}
		sh.mu.Lock()
		if err != nil {
			return err
		}
	}
	ln.Leave(w)
	return nil
}

// close removes a line. Its reservations can no longer be cancelled.
func (ls *lines) close(sh *lineShard, key string, ln *pendingLine) {
	ln.over = true
	if sh.keys[key] == ln {
		ls.remove(sh, key)
	}
}

// resets remembers which keys were reset recently, so that a reservation made before a
// reset does not enter a line made after it.
type resets struct {
	count atomic.Uint64 // resets so far

	mu   sync.Mutex // protects seed, last and lost
	seed maphash.Seed
	last map[uint64]uint64 // by the hash of a key: the count at its latest reset
	lost uint64            // the count up to which last has been dropped
}

// manyResets bounds the memory of resets. If more resets happen while a store makes a
// reservation, cancelling that gives nothing back, which never grants too much.
const manyResets = 1024

func (r *resets) note(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil || len(r.last) >= manyResets {
		r.seed, r.last, r.lost = maphash.MakeSeed(), make(map[uint64]uint64), r.count.Load()
	}
	r.last[maphash.String(r.seed, key)] = r.count.Add(1)
}

// since reports whether key may have been reset after the count of resets was count.
func (r *resets) since(count uint64, key string) bool {
	if count == r.count.Load() {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return count < r.last[maphash.String(r.seed, key)] || count < r.lost
}
