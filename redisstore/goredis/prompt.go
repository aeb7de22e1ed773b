package goredis

import (
	"context"
	"net"
	"os"
	"reflect"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit/redisstore"
)

// go-redis waits for a reply until a timeout of its own, even if the context of the command ends
// meanwhile. This file ends the wait: when the context ends, it sets the deadline of the connection
// to an instant that has passed.
//
// For that, it must know on which connection a command waits, and go-redis does not tell. The only
// thing that go-redis hands from the context of a command to the connection is the deadline. So the
// deadlines of each prompt command are in a time zone of their own, and by its zone a connection
// finds the command.

// A promptConn is the conn of a client whose commands can end when their contexts do. It implements
// redisstore.PromptConn.
type promptConn struct {
	*conn
	client *redis.Client
	hook   *promptHook
	limit  time.Duration // the most that a command takes
}

// setsDeadlines reports whether a client sets the deadlines of its connections each time that it
// uses them. Otherwise, those that prompt commands leave there would stay.
func setsDeadlines(client *redis.Client) bool {
	o := client.Options()
	return o.ReadTimeout >= 0 && o.WriteTimeout >= 0
}

func newPromptConn(c *conn, client *redis.Client) *promptConn {
	limit := client.Options().ReadTimeout
	if limit == 0 { // the client waits for any time
		limit = 24 * time.Hour
	}
	bare := client.WithTimeout(0) // no other deadline than that of the context
	bare.Options().ContextTimeoutEnabled = true
	hook := &promptHook{bare: bare, trips: trips{byZone: map[*time.Location]*trip{}}}
	client.AddHook(hook)
	return &promptConn{conn: c, client: client, hook: hook, limit: limit}
}

// DoPromptly implements [redisstore.PromptConn]. While the client connects or waits for a
// connection, it returns by itself when ctx ends.
func (p *promptConn) DoPromptly(
	ctx context.Context, command redisstore.Command, within time.Duration,
) redisstore.Reply {
	if p.hook.covered.Load() {
		return p.doElsewhere(ctx, command)
	}
	t := p.hook.trips.begin(ctx, min(within, p.limit), p.limit)
	defer p.hook.trips.end(t) // also if a hook panics
	stop := context.AfterFunc(ctx, t.interrupt)
	defer stop()
	reply := p.doOne(t, command)
	if reply.Err == nil && t.isStrange() {
		go closeOne(context.Background(), p.client) // so that the client makes another one
	}
	return reply
}

// doElsewhere sends a command in another goroutine, which goes on when ctx ends.
func (p *promptConn) doElsewhere(
	ctx context.Context, command redisstore.Command,
) redisstore.Reply {
	replied := make(chan redisstore.Reply, 1)
	go func() { replied <- p.doOne(ctx, command) }()
	select {
	case reply := <-replied:
		return reply
	case <-ctx.Done():
		return redisstore.Reply{Err: ctx.Err()}
	}
}

// A promptHook is the hook of a client that sends the prompt commands through another client, after
// all other hooks. It also makes connections that find trips.
type promptHook struct {
	// It shares the connections of the client. It has none of its hooks, and the commands have the
	// deadlines of their contexts.
	bare  *redis.Client
	trips trips

	mu      sync.Mutex  // protects last
	last    uintptr     // the code of what sends commands after the last hook, or 0
	covered atomic.Bool // whether hooks that see commands were added later
}

// DialHook implements [redis.Hook].
func (h *promptHook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := next(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return h.trips.finder(c), nil
	}
}

// ProcessHook implements [redis.Hook]. The client calls it when a hook is added. At first, h is the
// last hook, and next sends a command. If next is something else later, it is a hook that would not
// see the prompt commands that h sends.
func (h *promptHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	send := func(ctx context.Context, cmd redis.Cmder) error {
		t, _ := ctx.Value(tripKey{}).(*trip)
		if t == nil || t.trips != &h.trips {
			return next(ctx, cmd)
		}
		return h.bare.Process(ctx, cmd)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.last == 0 {
		h.last = codeOf(next)
	}
	switch codeOf(next) {
	case h.last, codeOf(send): // send is that of another store with the same client
		return send
	}
	h.covered.Store(true)
	return next
}

// codeOf identifies the code of a function.
func codeOf(hook redis.ProcessHook) uintptr { return reflect.ValueOf(hook).Pointer() }

// ProcessPipelineHook implements [redis.Hook].
func (*promptHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// A trip is a prompt command on its way. It is the context that go-redis gets for the command.
type trip struct {
	context.Context
	trips     *trips
	zone      *time.Location // of its deadlines
	near, far time.Time      // its deadlines, see Deadline

	mu          sync.Mutex // protects the fields below
	asked       bool       // whether go-redis has asked for a deadline
	known       bool       // whether a connection has found the trip
	waits       net.Conn   // the connection that it waits for, or nil
	interrupted bool
}

// Deadline implements [context.Context]. A connection that the client made before New does not
// find the trip, so that it cannot be interrupted there: then the trip ends by its near deadline.
// go-redis asks for the deadline when it has a connection, to write the command, and again to read
// the reply.
func (t *trip) Deadline() (deadline time.Time, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.asked && !t.known {
		return t.near, true
	}
	t.asked = true
	return t.far, true
}

// A tripKey is the key of the trip in the contexts that hooks derive of it.
type tripKey struct{}

// Value implements [context.Context].
func (t *trip) Value(key any) any {
	if key == (tripKey{}) {
		return t
	}
	return t.Context.Value(key)
}

// isStrange reports whether the connection has not found the trip.
func (t *trip) isStrange() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.asked && !t.known
}

// interrupt ends the wait for the connection, now or when it begins.
func (t *trip) interrupt() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.interrupted = true
	if t.waits != nil {
		_ = t.waits.SetDeadline(passed)
	}
}

// passed is an instant that has passed.
var passed = time.Unix(1, 0)

// wait notes for which connection the trip waits, if any. It returns false if the trip was
// interrupted.
func (t *trip) wait(c net.Conn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waits = c
	return !t.interrupted
}

// trips are those of a client, by their zones.
type trips struct {
	mu     sync.Mutex // protects the fields below
	byZone map[*time.Location]*trip
	unused []*time.Location
}

// begin makes a trip.
func (ts *trips) begin(ctx context.Context, near, far time.Duration) *trip {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	zone := time.FixedZone("", 0)
	if n := len(ts.unused); n > 0 {
		zone, ts.unused = ts.unused[n-1], ts.unused[:n-1]
	}
	now := time.Now().In(zone)
	t := &trip{Context: ctx, trips: ts, zone: zone, near: now.Add(near), far: now.Add(far)}
	ts.byZone[zone] = t
	return t
}

// end lets another trip have the zone of t.
func (ts *trips) end(t *trip) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	delete(ts.byZone, t.zone)
	ts.unused = append(ts.unused, t.zone)
}

// of returns the trip that has a deadline, or nil.
func (ts *trips) of(deadline time.Time) *trip {
	zone := deadline.Location()
	if zone == time.Local || zone == time.UTC { // the usual ones
		return nil
	}
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return ts.byZone[zone]
}

// A tripConn is a connection that finds trips by its deadlines.
type tripConn struct {
	net.Conn
	trips  *trips
	reads  *trip // that waits for the next reply, or nil
	writes *trip // that writes the next command, or nil
}

// finder returns c as a connection that finds trips.
func (ts *trips) finder(c net.Conn) net.Conn {
	found := &tripConn{Conn: c, trips: ts}
	socket, ok := c.(syscall.Conn)
	if ok {
		return &tripSocket{found, socket}
	}
	return found
}

// A tripSocket is a tripConn whose socket go-redis can look at, to see whether the server has
// closed the connection.
type tripSocket struct {
	*tripConn
	syscall.Conn
}

// NetConn returns the connection that c is made of. As in [crypto/tls.Conn], go-redis finds the
// socket by it.
func (c *tripConn) NetConn() net.Conn { return c.Conn }

// SetDeadline implements [net.Conn].
func (c *tripConn) SetDeadline(deadline time.Time) error {
	c.reads = c.find(deadline)
	c.writes = c.reads
	return c.Conn.SetDeadline(deadline)
}

// SetReadDeadline implements [net.Conn].
func (c *tripConn) SetReadDeadline(deadline time.Time) error {
	c.reads = c.find(deadline)
	return c.Conn.SetReadDeadline(deadline)
}

// SetWriteDeadline implements [net.Conn].
func (c *tripConn) SetWriteDeadline(deadline time.Time) error {
	c.writes = c.find(deadline)
	return c.Conn.SetWriteDeadline(deadline)
}

// find returns the trip that has a deadline, or nil. The trip then knows that it was found.
func (c *tripConn) find(deadline time.Time) *trip {
	t := c.trips.of(deadline)
	if t != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.known = true
	}
	return t
}

// Read implements [net.Conn].
func (c *tripConn) Read(b []byte) (int, error) {
	if t := c.reads; t != nil {
		if !t.wait(c.Conn) {
			return 0, os.ErrDeadlineExceeded
		}
		defer t.wait(nil)
	}
	return c.Conn.Read(b)
}

// Write implements [net.Conn].
func (c *tripConn) Write(b []byte) (int, error) {
	if t := c.writes; t != nil {
		if !t.wait(c.Conn) {
			return 0, os.ErrDeadlineExceeded
		}
		defer t.wait(nil)
	}
	return c.Conn.Write(b)
}
