package redisstore

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// An outbox sends the commands on the keys of one server, so that commands on different keys share
// a round trip. A batch is what is sent together. Sending costs this process and the server more
// than deciding does, so a batch is what makes a call cheap.
//
//	enqueue → queue of a key → ready → batch → Conn → replies → callers
//
// A call on a key without a queue makes the queue ready. If no sender is about to take a batch,
// one is started. Before a sender takes what is ready, it lets others run: callers who have
// been answered by one batch call again together, and so share the next one. The sender then makes
// the commands, sends them, and answers the callers. A queue in which calls have arrived meanwhile
// is ready again.
//
// Callers only queue their calls and wait. So they can return when their time is over, even if the
// client ignores contexts. If the client can be interrupted, a lone caller sends its command
// itself: see lone.go.
type outbox struct {
	store  *Store
	server *server

	// Whether the client does not know the server of these keys. Then each command is sent by
	// itself, because a server that hangs would delay the commands to others.
	apart bool

	mu        sync.Mutex // protects the fields below, and those of the queues and batches
	queues    map[queueID]*queue
	ready     []*queue // the queues whose calls can be sent, in the order of arrival
	gathering bool     // whether a sender will take what is ready, once it has called gather
	senders   int      // the senders whose batch is in progress
	batches   []*batch // in progress
	arrived   int      // the calls since the outbox was made
	waited    int      // the weight of the ticks since then: see timeout.go
	retired   bool     // whether the store has forgotten the outbox, which had no calls

	used time.Duration // when the latest batch was to be sent, by the store's clock

	trip atomic.Int64 // how long the latest batch took, in nanoseconds
}

const (
	// fewSenders is the number of senders up to which another one is started for any command. From
	// then on commands wait together until a batch returns, and share the next one. The fewer
	// batches are in progress, the more commands they have, and the less each one costs. With more
	// senders, a server that has as much to do as it can gets the same commands in smaller batches,
	// takes longer for them, and so gets still smaller ones.
	//
	// Commands that fill a batch do not wait, because they would gain nothing. If the server has
	// answered nothing between two ticks, one more sender takes all that waits.
	fewSenders = 8

	// A batch is full with so many commands.
	maxBatch = 256

	// bulky is the number of calls beyond which a command is sent by itself, because the script
	// takes long for it, and the other commands of a batch would wait for that.
	bulky = 64
)

// enqueue adds a call to the queue of its key.
func (s *Store) enqueue(c *call) {
	accepted := false
	for !accepted { // another outbox replaces one that the store has just forgotten
		accepted = s.outboxOf(c.name.text).accept(c)
	}
	s.startTicking()
}

// enqueueAll adds calls to the queues of their keys at once, so that they share a batch. It ignores
// calls that are nil.
func (s *Store) enqueueAll(calls []*call) {
	byOutbox := map[*outbox][]*call{}
	for _, c := range calls {
		if c != nil {
			o := s.outboxOf(c.name.text)
			byOutbox[o] = append(byOutbox[o], c)
		}
	}
	for o, its := range byOutbox {
		if !o.accept(its...) {
			s.enqueueAll(its) // in the outbox that replaces it
		}
	}
	if len(byOutbox) > 0 {
		s.startTicking()
	}
}

// accept adds calls to the queues of their keys. It returns false, and adds none, if the store has
// forgotten the outbox: nobody would count the time of the calls.
func (o *outbox) accept(calls ...*call) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.retired {
		return false
	}
	for _, c := range calls {
		o.add(c)
	}
	return true
}

// add adds a call to the queue of its key. The caller holds o.mu.
func (o *outbox) add(c *call) {
	o.arrived++
	c.born = o.waited
	id := queueOf(c)
	q := o.queues[id]
	if q != nil {
		q.next = append(q.next, c)
		o.startSender() // if the command of q has become bulky
		return
	}
	q = &queue{outbox: o, id: id, next: []*call{c}}
	o.queues[id] = q
	if c.ctx != nil && o.isQuiet() {
		o.beginLone(q, c)
		return
	}
	o.makeReady(q)
}

// makeReady lets a sender take the calls of q, which has no command in progress. If there are
// none, o forgets the queue. The caller holds o.mu.
func (o *outbox) makeReady(q *queue) {
	switch {
	case !q.waits():
		delete(o.queues, q.id)
	case o.apart || q.again != nil:
		go o.sendByItself(q)
	default:
		o.ready = append(o.ready, q)
		o.startSender()
	}
}

// startSender starts a sender, unless what is ready is to wait: see fewSenders. The caller holds
// o.mu.
func (o *outbox) startSender() {
	if o.senders < fewSenders || o.fillsBatch() {
		o.startSenderNow()
	}
}

// fillsBatch reports whether the next batch would have no more commands if it waited. The caller
// holds o.mu.
func (o *outbox) fillsBatch() bool {
	return len(o.ready) >= maxBatch || len(o.ready) > 0 && o.ready[0].isBulky()
}

// startSenderNow starts a sender if there is something to send, and no other one is about to send
// it. The caller holds o.mu.
func (o *outbox) startSenderNow() {
	if len(o.ready) > 0 && !o.gathering {
		o.gathering = true
		go o.runSender()
	}
}

// growStack grows the stack of a new goroutine to the 8 KB that most commands need. The runtime
// would do that anyway, but in the depth of the client or of a decision, where it takes up to
// 5 µs to move the frames of all callers: a sixth of a call on the same machine.
//
//go:noinline
func growStack() {
	var room [4 << 10]byte
	runtime.KeepAlive(&room)
}

// runSender sends one batch after another until nothing is ready.
func (o *outbox) runSender() {
	growStack()
	for {
		o.gather()
		b := o.takeBatch()
		if b == nil {
			return
		}
		o.send(b)
		goesOn := o.goOn(b)
		o.deliver(b)
		if !goesOn {
			return
		}
	}
}

// maxYields bounds how often gather lets others run.
const maxYields = 4

// gather lets callers run who have been answered just now, as long as more of them call again.
// While all processors are busy that takes long, so it ends after a quarter of the time that the
// latest batch took.
func (o *outbox) gather() {
	begin, arrived := o.store.elapsed(), o.arrivals()
	for range maxYields {
		runtime.Gosched()
		now := o.arrivals()
		if now == arrived || o.store.elapsed()-begin > time.Duration(o.trip.Load())/4 {
			return
		}
		arrived = now
	}
}

// arrivals returns how many calls have arrived since o was made.
func (o *outbox) arrivals() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.arrived
}

// takeBatch returns the commands to send next, or nil if there are none.
func (o *outbox) takeBatch() *batch {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.gathering = false
	var groups []*group
	left := o.ready[:0] // for the batches after this one
	for _, q := range o.ready {
		if len(groups) == maxBatch || len(groups) > 0 && (groups[0].isBulky() || q.isBulky()) {
			left = append(left, q)
			continue
		}
		if g := q.nextGroup(); g != nil {
			groups = append(groups, g)
			continue
		}
		o.makeReady(q) // the callers have left
	}
	clear(o.ready[len(left):])
	o.ready = left
	if len(groups) == 0 {
		return nil
	}
	o.senders++
	o.startSender()
	return o.begin(context.Background(), groups, byOneOfFew)
}

// begin makes a batch of groups, which is in progress from now on. It is abandoned when ctx ends.
// The caller holds o.mu.
func (o *outbox) begin(ctx context.Context, groups []*group, by sender) *batch {
	b := &batch{outbox: o, groups: groups, by: by}
	b.ctx, b.cancel = context.WithCancel(ctx)
	o.batches = append(o.batches, b)
	return b
}

// goOn ends a batch, and reports whether its sender should take another one. That is decided before
// the callers are answered, so that none of them starts another sender.
func (o *outbox) goOn(b *batch) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.end(b) || o.gathering || o.answersLone(b) {
		return false
	}
	o.gathering = true
	return true
}

// end ends a batch. It returns false if the batch was abandoned before. The caller holds o.mu.
func (o *outbox) end(b *batch) bool {
	b.cancel()
	i := slices.Index(o.batches, b)
	if i < 0 {
		return false
	}
	o.batches = slices.Delete(o.batches, i, i+1)
	if b.by == byOneOfFew {
		o.senders--
	}
	return true
}

// sendByItself sends the command of a queue, without those of other keys.
func (o *outbox) sendByItself(q *queue) {
	growStack()
	if q.again == nil {
		o.gather()
	}
	o.mu.Lock()
	g := q.nextGroup()
	if g == nil {
		o.makeReady(q) // the callers have left
		o.mu.Unlock()
		return
	}
	b := o.begin(context.Background(), []*group{g}, byItself)
	o.mu.Unlock()
	o.carry(b)
}

// carry sends a batch of one command, and answers the callers.
func (o *outbox) carry(b *batch) {
	o.send(b)
	o.mu.Lock()
	o.end(b)
	o.mu.Unlock()
	o.deliver(b)
}

// deliver answers the calls of a batch.
func (o *outbox) deliver(b *batch) {
	for _, g := range b.groups {
		o.deliverGroup(g)
	}
}

// deliverGroup answers the calls of a group from the reply to its command.
func (o *outbox) deliverGroup(g *group) {
	if isRedirection(g.err) && o.sendAgain(g) {
		return
	}
	first := g.calls[0]
	if first.prog == nil {
		first.reply, first.sent, first.received = g.reply, g.sent, g.received
		o.finish(g, g.err)
		return
	}
	err := o.store.readReply(g) // also if nobody waits for it, because of the lease that it has
	if errors.Is(err, errOther) {
		go o.resolve(g, err) // because that takes round trips
		return
	}
	o.finish(g, err)
}

// sendAgain sends the command of a group again, which the server did not execute because another
// one has the key, or is about to. It is sent by itself, because only then the client follows
// redirections, and because the other server may not answer. It returns false, and does nothing, if
// the command was abandoned, or was sent often enough.
func (o *outbox) sendAgain(g *group) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	q := g.queue
	if q.group != g || g.moves == maxResends {
		return false
	}
	g.moves++
	q.group, q.again = nil, g
	o.makeReady(q)
	return true
}

// finish answers the calls of a group, unless its command was abandoned.
func (o *outbox) finish(g *group, err error) {
	o.mu.Lock()
	q := g.queue
	if q.group != g {
		o.mu.Unlock()
		return
	}
	q.group = nil
	o.makeReady(q)
	o.mu.Unlock()
	for _, c := range g.calls {
		c.answer(err)
	}
}
