package redisstore

import (
	"context"

	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

// maxEach bounds the calls of an ApplyEach that are in progress at once, so that the last of
// them does not wait for the others until its timeout has passed.
const maxEach = 512

// ApplyEach implements [limit.EachStates]. It queues the calls of all keys before it
// sends the first command, so that those on one key share a command, and then waits for all
// of them. Leases, the denial cache, timeouts and breakers are those of single calls.
func (s *states) ApplyEach(ctx context.Context, calls []limit.Call) {
	ctx, cancel := within(ctx, s.timeout)
	defer cancel()
	asked := make([]*call, min(len(calls), maxEach)) // nil for those that need no command
	for len(calls) > 0 {
		n := min(len(calls), maxEach)
		s.prepareEach(ctx, calls[:n], asked[:n])
		s.enqueueAll(asked[:n])
		s.awaitEach(ctx, calls[:n], asked[:n])
		calls = calls[n:]
	}
}

// prepareEach makes the calls for the keys that need a command. Nothing is queued before it
// returns, because it may call a user's clock, which may panic.
func (s *states) prepareEach(ctx context.Context, calls []limit.Call, asked []*call) {
	for i := range calls {
		e := &calls[i]
		asked[i] = nil
		prog, err := s.programs.get(e.Limit)
		if err == nil {
			err = ctx.Err() // since the calls before these
		}
		if err != nil {
			e.Err = err
			continue
		}
		name := s.name(e.Key)
		if d, ok := s.known(name, prog, e.Request); ok {
			e.Answer = step.Answer{Decision: d}
			continue
		}
		asked[i] = s.newCall()
		asked[i].name, asked[i].prog, asked[i].req = name, prog, e.Request
	}
}

// awaitEach waits for the calls.
func (s *states) awaitEach(ctx context.Context, calls []limit.Call, asked []*call) {
	for i, c := range asked {
		e := &calls[i]
		if c != nil {
			if e.Err = c.await(ctx); e.Err == nil {
				e.Answer, e.Err = c.res, c.unread
				s.free(c)
			}
		}
		s.counts.tally(ctx, &e.Request, e.Err)
	}
}

// enqueueAll adds calls to the queues of their keys, and then starts the new queues. It
// ignores calls that are nil.
func (s *Store) enqueueAll(calls []*call) {
	queues := make([]*queue, 0, len(calls))
	for _, c := range calls {
		if c == nil {
			continue
		}
		if q := s.add(c); q != nil {
			queues = append(queues, q)
		}
	}
	if len(queues) == 0 {
		return
	}
	if pipeline, ok := s.conn.(Pipeline); ok && len(queues) > 1 {
		go s.sendByServer(pipeline, queues) // not here, because Server may block
	} else {
		for _, q := range queues {
			s.startSender(q)
		}
	}
	s.startTicking()
}

// sendByServer calls sendTogether for the queues of each server, so that a server that does
// not answer delays no commands to others.
func (s *Store) sendByServer(pipeline Pipeline, queues []*queue) {
	cluster, ok := s.conn.(Cluster)
	if !ok {
		s.sendTogether(pipeline, queues)
		return
	}
	servers := make(map[string][]*queue)
	for _, q := range queues {
		name := cluster.Server(context.Background(), q.id.key)
		servers[name] = append(servers[name], q)
	}
	for _, its := range servers {
		go s.sendTogether(pipeline, its)
	}
}

// A shipment is a group and its queue.
type shipment struct {
	q *queue
	g *group
}

// sendTogether sends the first command of each queue in one round trip. A queue in which
// calls are left after that gets a sender.
func (s *Store) sendTogether(pipeline Pipeline, queues []*queue) {
	sent := make([]shipment, 0, len(queues))
	for _, q := range queues {
		g := s.nextGroup(q)
		if g == nil {
			continue // its caller has left
		}
		if err := s.admit(q, g); err == nil {
			sent = append(sent, shipment{q, g})
			continue
		} else if q.finish(g, err) {
			s.follow(q)
		}
		g.cancel()
	}
	s.transmitTogether(pipeline, sent)
	for _, p := range sent {
		if isRedirection(p.g.err) {
			go func() { // because the other server may not answer
				s.transmit(p.g)
				s.deliver(p)
			}()
			continue
		}
		s.deliver(p)
	}
}

// deliver sets the results of a group whose command has been sent.
func (s *Store) deliver(p shipment) {
	more, why := s.conclude(p.q, p.g)
	if why != nil {
		go func() { // because it may take a round trip
			defer p.g.cancel()
			if s.resolve(p.q, p.g, why) {
				s.follow(p.q)
			}
		}()
		return
	}
	if more {
		s.follow(p.q)
	}
	p.g.cancel()
}

// transmitTogether is transmit for several groups. It does not send those again that were
// redirected: a client follows a redirection only in Do.
func (s *Store) transmitTogether(pipeline Pipeline, groups []shipment) {
	for range 1 + maxResends {
		if len(groups) == 0 {
			return
		}
		commands := make([]Command, len(groups))
		for i, p := range groups {
			commands[i] = p.g.cmd
		}
		s.counts.calls.Add(uint64(len(groups)))
		ctx := groups[0].g.ctx
		replies := pipeline.DoEach(ctx, commands)
		var again []shipment
		for i, p := range groups {
			p.g.reply, p.g.err = replies[i].Text, replies[i].Err
			if p.g.err != nil && ctx.Err() != nil {
				// The timer abandons the groups at the same tick, or the next, but one
				// after the other.
				<-p.g.ctx.Done()
			}
			if !isRedirection(p.g.err) && (p.g.resends() || s.meetsHolds(p.g)) {
				again = append(again, p)
			}
		}
		groups = again
	}
}

// follow starts a sender for a queue that has no command in progress, or removes the queue
// if no call waits.
func (s *Store) follow(q *queue) {
	q.shard.mu.Lock()
	empty := len(q.next) == 0
	if empty {
		delete(q.shard.active, q.id)
	}
	q.shard.mu.Unlock()
	if !empty {
		s.startSender(q)
	}
}
