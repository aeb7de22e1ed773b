package redisstore

import (
	"context"
	"errors"
	"fmt"
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

	maxBatch = 256 // commands in a batch

	// bulky is the number of calls beyond which a command is sent by itself, because the script
	// takes long for it, and the other commands of a batch would wait for that.
	bulky = 64
)

// A batch is the commands that are sent together.
type batch struct {
	outbox *outbox
	groups []*group
	ctx    context.Context // ends when it is abandoned, or with the lone caller's
	cancel context.CancelFunc

	// Whether a sender of the outbox sends it, of which there are few. Otherwise it is one command,
	// which has a goroutine of its own (sendByItself), or is sent by its caller.
	bySender bool
	byCaller bool // see lone.go

	tests    bool          // whether it tests the server for the breaker
	wasSent  bool          // whether the client has got it; before, its sender cannot hang
	sent     time.Duration // when, by the store's clock
	born     int           // outbox.waited at that time
	reported bool          // whether its outcome was reported to the breaker
}

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
	b := o.begin(context.Background(), groups)
	b.bySender = true
	return b
}

// begin makes a batch of groups, which is in progress from now on. It is abandoned when ctx ends.
// The caller holds o.mu.
func (o *outbox) begin(ctx context.Context, groups []*group) *batch {
	b := &batch{outbox: o, groups: groups}
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
	if b.bySender {
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
	b := o.begin(context.Background(), []*group{g})
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

// send sends a batch, unless the breaker does not allow it.
func (o *outbox) send(b *batch) {
	s := o.store
	o.mu.Lock()
	o.used = s.elapsed()
	o.mu.Unlock()
	tests, err := o.server.breaker.allow(s.elapsed())
	if err != nil {
		for _, g := range b.groups {
			g.err = err
		}
		return
	}
	b.tests = tests
	for _, g := range b.groups {
		if g.cmd.Words == nil {
			s.prepare(g)
		}
	}
	o.mu.Lock()
	b.wasSent, b.sent, b.born = true, s.elapsed(), o.waited
	o.mu.Unlock()
	s.transmit(b)
	o.conclude(b)
}

// maxResends bounds how often a command is sent again after a reply that says that the server did
// not execute it.
const maxResends = 3

// transmit sends the commands of a batch. It sends those again which the server did not execute
// because it does not know their script, or because their script does not know holds.
func (s *Store) transmit(b *batch) {
	groups := b.groups
	for range 1 + maxResends {
		commands := make([]Command, len(groups))
		sent := s.elapsed()
		for i, g := range groups {
			commands[i], g.sent = g.cmd, sent
		}
		s.counts.calls.Add(uint64(len(groups)))
		var replies []Reply
		if b.byCaller {
			replies = []Reply{s.doLone(b.ctx, commands[0])}
		} else {
			replies = s.do(b.ctx, commands)
		}
		received := s.elapsed()
		for i, g := range groups {
			g.reply, g.err, g.received = replies[i].Text, replies[i].Err, received
		}
		groups = s.toResend(b, groups)
		if len(groups) == 0 {
			return
		}
	}
}

// do sends commands through the Conn. If the replies are not as many, nobody knows which commands
// they belong to.
func (s *Store) do(ctx context.Context, commands []Command) []Reply {
	replies := s.conn.Do(ctx, commands)
	if len(replies) == len(commands) {
		return replies
	}
	err := fmt.Errorf("redisstore: %T.Do returned %d replies to %d commands: this is a defect of it",
		s.conn, len(replies), len(commands))
	replies = make([]Reply, len(commands))
	for i := range replies {
		replies[i].Err = err
	}
	return replies
}

// toResend returns those of groups whose commands are to be sent again, and changes the commands
// so that the server can execute them. The server learns a script from the first of them.
func (s *Store) toResend(b *batch, groups []*group) (again []*group) {
	if b.ctx.Err() != nil {
		return nil
	}
	learns := map[*script]bool{}
	for _, g := range groups {
		switch {
		case isUnknownScript(g.err):
			if !learns[g.script] {
				learns[g.script] = true
				g.cmd = g.script.inFull(g.cmd)
			}
		case s.meetsHolds(g):
		default:
			continue
		}
		again = append(again, g)
	}
	return again
}

// conclude tells the counters, the server and its breaker what became of a batch.
func (o *outbox) conclude(b *batch) {
	s, now := o.store, o.store.elapsed()
	for _, g := range b.groups {
		s.counts.observe(g.received-g.sent, g.err)
	}
	if b.isAnswered() {
		s.answered(o.server)
		s.strays.Answered()
		o.trip.Store(int64(now - b.sent))
	}
	o.mu.Lock()
	reported, age := b.reported, o.waited-b.born
	b.reported = true
	o.mu.Unlock()
	if reported { // because it was abandoned
		o.server.breaker.explain(b.failure())
	} else {
		outcome := s.outcome(b.failure(), now-b.sent, age)
		b.failLeft()
		o.server.breaker.report(b.tests, b.sent, now, outcome)
	}
	for _, g := range b.groups {
		if isUnwilling(g.err) {
			s.redial(b.ctx, o.server, g.queue.id.key, b.sent)
			return
		}
	}
}

// failLeft counts the commands of b that have failed after the deadlines of their callers.
func (b *batch) failLeft() {
	for _, g := range b.groups {
		b.outbox.store.counts.failLeft(g, g.err)
	}
}

// isAnswered reports whether the server has replied to a command of b.
func (b *batch) isAnswered() bool {
	for _, g := range b.groups {
		if g.err == nil || isReply(g.err) {
			return true
		}
	}
	return false
}

// failure returns an error if no command of b shows that the server works.
func (b *batch) failure() (err error) {
	for _, g := range b.groups {
		if g.err == nil || aboutKey(g.err) {
			return nil
		}
		if err == nil {
			err = g.err
		}
	}
	return err
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
