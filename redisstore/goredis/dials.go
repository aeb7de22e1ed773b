package goredis

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// A client tries several times to connect, for longer than the store waits, and does not say why
// it fails. So dials remember that, by the address in the options of the server's client.
type dials struct {
	mu     sync.Mutex // protects failed
	failed map[string]failure
}

// A failure is that of the latest attempt to connect to a server.
type failure struct {
	err error
	at  time.Time

	// When a command last failed with an error from before, because the client has failed to
	// connect so often that it does not try again for each command, but only once a second.
	repeated time.Time
}

// fresh is how long a failure explains why there is no connection. While commands need one, the
// client tries at least once a second.
const fresh = time.Second

// retry is the time between attempts to connect, while the client would wait a second.
const retry = 50 * time.Millisecond

// shortestWait tells the attempts for which the client waits a second from others, for which
// commands wait: those follow each other sooner.
const shortestWait = fresh / 2

// watch makes a client report its attempts to connect.
func (d *dials) watch(client *redis.Client) {
	o := client.Options()
	client.AddHook(dialHook{
		dials: d, addr: o.Addr,
		tells: o.DialerRetryBackoff == nil && o.DialerRetryTimeout < shortestWait,
	})
}

// isForNobody reports whether an attempt that begins now is one of those that the client makes once
// a second, instead of one for each command, so that nobody waits for it.
func (d *dials) isForNobody(addr string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	f := d.failed[addr]
	return time.Since(f.repeated) < fresh && time.Since(f.at) >= shortestWait
}

// note remembers the result of an attempt, and reports whether it has failed and commands still ask
// for another one.
func (d *dials) note(addr string, err error) (again bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err == nil {
		delete(d.failed, addr)
		return false
	}
	f := failure{err, time.Now(), d.failed[addr].repeated}
	d.failed[addr] = f
	return time.Since(f.repeated) < fresh
}

// told remembers whether err, with which a command failed, is one from before.
func (d *dials) told(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for addr, f := range d.failed {
		if err.Error() == f.err.Error() && time.Since(f.at) > retry/5 {
			// A new one would be told at once.
			f.repeated = time.Now()
			d.failed[addr] = f
		}
	}
}

// latest is what NoAnswer returns.
func (d *dials) latest(addr string) (err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for a, f := range d.failed {
		switch {
		case time.Since(f.at) > fresh:
			delete(d.failed, a) // perhaps the server is not in use any more
		case addr == "" || a == addr:
			err = f.err
		}
	}
	return err
}

// A dialHook is the hook of a client.
type dialHook struct {
	*dials
	addr  string
	tells bool // whether isForNobody can tell the client's attempts apart
}

// DialHook implements [redis.Hook]. It repeats an attempt for which nobody waits. Others must end,
// also because the client asks a cluster for its slots only once at a time, perhaps a dead node.
func (h dialHook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		repeats := h.tells && h.isForNobody(h.addr)
		c, err := next(ctx, network, addr)
		for h.note(h.addr, err) && repeats {
			time.Sleep(retry)
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), fresh)
			c, err = next(ctx, network, addr)
			cancel()
		}
		return c, err
	}
}

// ProcessHook implements [redis.Hook].
func (dialHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

// ProcessPipelineHook implements [redis.Hook].
func (dialHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
