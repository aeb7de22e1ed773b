package redis_test

import (
	"bufio"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A proxy connects clients to a server, and delays or breaks their connections. It parses
// requests and replies, so that it is exact for clients that pipeline.
type proxy struct {
	t    testing.TB
	wire wire
	port int
	wg   sync.WaitGroup // all its goroutines

	mu       sync.Mutex
	to       string       // where new connections lead
	changed  sync.Cond    // signals a change of held, or the end of a link
	listener net.Listener // nil while refusing
	links    map[*link]struct{}
	held     bool
	waiting  int // replies that are held back, at most one of each link
	armed    bool
	cut      []string // the commands that it is armed for; all if empty
}

// A link is a client's connection and the proxy's connection to the server for it.
type link struct {
	client, server net.Conn

	// These are protected by the proxy's mu.
	ended  bool
	cutAt  int    // the reply to drop, counted from 1; 0 for none
	says   string // if not empty, the error in place of each reply
	silent bool   // whether replies are dropped
}

// A wire is the latency of requests and of replies: at least delay, and up to jitter more.
// Their order is kept.
type wire struct{ delay, jitter time.Duration }

// wires are none, one within a data center, and one between two.
var wires = map[string]wire{
	"0 ms":   {},
	"0.5 ms": {500 * time.Microsecond, 200 * time.Microsecond},
	"2 ms":   {2 * time.Millisecond, time.Millisecond},
}

// startProxy starts a proxy to a server's address, which ends with the test.
func startProxy(t testing.TB, to string) *proxy { return startWire(t, to, wire{}) }

// startWire starts a proxy with the latency of w.
func startWire(t testing.TB, to string, w wire) *proxy {
	t.Helper()
	p := &proxy{t: t, to: to, wire: w, links: map[*link]struct{}{}}
	p.changed.L = &p.mu
	eventually(t, "the proxy has a port", func() bool {
		p.port = freePort(t)
		return p.listen() == nil
	})
	t.Cleanup(func() {
		p.refuse()
		p.wg.Wait()
	})
	return p
}

func (p *proxy) addr() string { return local(p.port) }

// listen starts to accept connections.
func (p *proxy) listen() error {
	l, err := net.Listen("tcp", p.addr())
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.listener = l
	p.wg.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			p.wg.Go(func() { p.serve(l, client) })
		}
	})
	return nil
}

// refuse closes all connections, and refuses new ones.
func (p *proxy) refuse() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		p.listener.Close()
		p.listener = nil
	}
	for l := range p.links {
		p.endLocked(l)
	}
}

// accept ends refuse.
func (p *proxy) accept() {
	p.t.Helper()
	require.NoError(p.t, p.listen())
}

// reset closes all connections once. New ones are accepted.
func (p *proxy) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		p.endLocked(l)
	}
}

// lead makes new connections lead to another server. Those that there are stay.
func (p *proxy) lead(to string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.to = to
}

// say replaces each reply on the connections that there are by an error. New connections work.
func (p *proxy) say(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.says = text
	}
}

// silence drops all replies on the connections that there are, without closing them. New
// connections work.
func (p *proxy) silence() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.silent = true
	}
}

// hold holds replies back from now on. Requests still reach the server.
func (p *proxy) hold() { p.setHeld(true) }

// release ends hold, and passes on the replies that were held back.
func (p *proxy) release() { p.setHeld(false) }

// holding returns how many connections have replies that are held back.
func (p *proxy) holding() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.waiting
}

func (p *proxy) setHeld(held bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held = held
	p.changed.Broadcast()
}

// cutAfterRequest passes the next request to the server, drops its reply and closes the
// connection: the request is executed, and the client cannot know. It does so once. With
// names of commands, it waits for one of these; without, a new connection's greeting counts
// as a request.
func (p *proxy) cutAfterRequest(commands ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed, p.cut = true, nil
	for _, c := range commands {
		p.cut = append(p.cut, strings.ToLower(c))
	}
}

func (p *proxy) serve(accepted net.Listener, client net.Conn) {
	p.mu.Lock()
	to := p.to
	p.mu.Unlock()
	server, err := net.Dial("tcp", to)
	if err != nil {
		client.Close()
		return
	}
	l := &link{client: client, server: server}
	p.mu.Lock()
	p.links[l] = struct{}{}
	if p.listener != accepted { // it was accepted while refuse was called
		p.endLocked(l)
	}
	p.mu.Unlock()
	p.wg.Go(func() { p.replies(l) })
	p.requests(l)
}

// requests passes on a client's requests, up to the one to cut after.
func (p *proxy) requests(l *link) {
	defer p.end(l)
	n := 0
	p.carry(l.client, func(request []byte) bool {
		n++
		last := p.isCut(l, n, request)
		if _, err := l.server.Write(request); err != nil {
			p.end(l)
			return false
		}
		return !last // dropping its reply ends the link
	})
}

// carry reads values, and passes each on after the wire's latency, until pass returns false
// or the connection ends.
func (p *proxy) carry(from net.Conn, pass func(value []byte) bool) {
	type parcel struct {
		value []byte
		due   time.Time
	}
	way := make(chan parcel, 1024)
	done := make(chan struct{})
	p.wg.Go(func() {
		defer close(done)
		for it := range way {
			if p.wire != (wire{}) {
				nap(time.Until(it.due))
			}
			if !pass(it.value) {
				break
			}
		}
		for range way { // later values are lost
		}
	})
	defer func() {
		close(way)
		<-done
	}()
	for r := bufio.NewReader(from); ; {
		value, err := readValue(r)
		if err != nil {
			return
		}
		due := time.Now().Add(p.wire.delay)
		if p.wire.jitter > 0 {
			due = due.Add(rand.N(p.wire.jitter))
		}
		way <- parcel{value, due}
	}
}

// isCut reports whether request, the n-th of the link, is the one to cut after.
func (p *proxy) isCut(l *link, n int, request []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.armed || len(p.cut) > 0 && !slices.Contains(p.cut, commandOf(request)) {
		return false
	}
	p.armed, l.cutAt = false, n
	return true
}

// replies passes on a server's replies.
func (p *proxy) replies(l *link) {
	defer p.end(l)
	n := 1
	p.carry(l.server, func(reply []byte) bool {
		if !p.mayPass(l, n, reply) {
			p.end(l)
			return false
		}
		if _, err := l.client.Write(p.instead(l, reply)); err != nil {
			p.end(l)
			return false
		}
		if !isPush(reply) {
			n++
		}
		return true
	})
}

// mayPass waits while replies are held back, and reports whether to pass on the n-th reply of
// the link.
func (p *proxy) mayPass(l *link, n int, reply []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n == l.cutAt && !isPush(reply) {
		return false
	}
	p.waiting++
	for p.held && !l.ended {
		p.changed.Wait()
	}
	p.waiting--
	return !l.ended
}

// instead returns what to pass on in place of a reply: the reply itself, unless the link has
// something else to say.
func (p *proxy) instead(l *link, reply []byte) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case l.silent:
		return nil
	case l.says != "" && !isPush(reply):
		return []byte("-" + l.says + "\r\n")
	}
	return reply
}

func (p *proxy) end(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.endLocked(l)
}

func (p *proxy) endLocked(l *link) {
	l.ended = true
	l.client.Close()
	l.server.Close()
	delete(p.links, l)
	p.changed.Broadcast()
}
