package servers

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

// A proxy stands between clients and a server, and slows down or breaks what is between
// them. It knows where requests and replies end, so that it is exact with clients that
// send several at a time.
type proxy struct {
	t    testing.TB
	to   string
	wire wire
	port int
	wg   sync.WaitGroup // all its goroutines

	mu       sync.Mutex
	changed  sync.Cond    // of held, or a link's end
	listener net.Listener // nil while refusing
	links    map[*link]struct{}
	held     bool
	waiting  int // replies that are held back, one of a link at most
	armed    bool
	cut      []string // the commands that it is armed for, all if none
}

// A link is a client's connection, and that to the server for it.
type link struct {
	client, server net.Conn

	// Both under the proxy's mu.
	ended bool
	cutAt int // the reply to swallow, counted from 1; 0 for none
}

// A wire is how long requests are on their way, and replies on theirs: at least delay,
// and up to jitter more. They stay in order.
type wire struct{ delay, jitter time.Duration }

// wires are no wire, one as within a data centre, and one as between two.
var wires = map[string]wire{
	"0 ms":   {},
	"0.5 ms": {500 * time.Microsecond, 200 * time.Microsecond},
	"2 ms":   {2 * time.Millisecond, time.Millisecond},
}

// startProxy starts a proxy to a server's address, for the time of the test.
func startProxy(t testing.TB, to string) *proxy { return startWire(t, to, wire{}) }

// startWire starts a proxy that takes its time.
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

// refuse closes all connections, and refuses new ones as if nobody listened.
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

// hold holds replies back from now on. Requests go on to the server.
func (p *proxy) hold() { p.setHeld(true) }

// release lets the replies through that were held back, and those to come.
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

// cutAfterRequest passes the next request to the server, swallows its reply and
// closes the connection: what was asked is done, and the client cannot know. It is
// once. With names of commands, it is the next of them; without, a new connection's
// greeting counts as well as anything.
func (p *proxy) cutAfterRequest(commands ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed, p.cut = true, nil
	for _, c := range commands {
		p.cut = append(p.cut, strings.ToLower(c))
	}
}

func (p *proxy) serve(accepted net.Listener, client net.Conn) {
	server, err := net.Dial("tcp", p.to)
	if err != nil {
		client.Close()
		return
	}
	l := &link{client: client, server: server}
	p.mu.Lock()
	p.links[l] = struct{}{}
	if p.listener != accepted { // it came while refuse was called
		p.endLocked(l)
	}
	p.mu.Unlock()
	p.wg.Go(func() { p.replies(l) })
	p.requests(l)
}

// requests passes a client's on, until one is the last.
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
		return !last // whose reply ends the link
	})
}

// carry reads values, and passes each on after its time on the wire, as long as pass
// returns true. It ends with the connection.
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
				time.Sleep(time.Until(it.due))
			}
			if !pass(it.value) {
				break
			}
		}
		for range way { // what comes after is lost
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

// isCut reports whether request, the link's n-th, is the one to cut after.
func (p *proxy) isCut(l *link, n int, request []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.armed || len(p.cut) > 0 && !slices.Contains(p.cut, commandOf(request)) {
		return false
	}
	p.armed, l.cutAt = false, n
	return true
}

// replies passes a server's on.
func (p *proxy) replies(l *link) {
	defer p.end(l)
	n := 1
	p.carry(l.server, func(reply []byte) bool {
		if !p.mayPass(l, n, reply) {
			p.end(l)
			return false
		}
		if _, err := l.client.Write(reply); err != nil {
			p.end(l)
			return false
		}
		if !isPush(reply) {
			n++
		}
		return true
	})
}

// mayPass reports whether the client is to have a reply, the link's n-th, once it is
// not held back.
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
