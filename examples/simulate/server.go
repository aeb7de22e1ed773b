package main

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/fakeredis" //nolint:depguard // no released program
	"github.com/ratelimit-go/ratelimit/redisstore"
)

// A server is a Redis with faults.
type server struct {
	redis *fakeredis.Server

	mu      sync.Mutex // protects the fields below
	away    bool
	life    int           // how often it has started
	lost    float64       // the share of the commands whose replies are lost
	late    float64       // the share of the commands that arrive late
	lateBy  time.Duration // and how late
	history []snapshot
}

// A snapshot is the values from an instant on.
type snapshot struct {
	at     time.Time
	values map[string]string
}

func newServer() *server { return &server{redis: fakeredis.New()} }

// stop makes the server refuse connections.
func (s *server) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = true
}

// hinder has the server lose a share of the replies, and get a share of the commands late.
func (s *server) hinder(lost, late float64, lateBy time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lost, s.late, s.lateBy = lost, late, lateBy
}

// start starts the server, or another one in its place, with some values.
func (s *server) start(values map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = false
	s.life++
	s.redis.Set(func() {
		s.redis.Values = map[string]string{}
		maps.Copy(s.redis.Values, values)
		s.redis.Flush()
	})
}

// skew sets by how much the clock of the server is ahead of what it was.
func (s *server) skew(by time.Duration) { s.redis.Set(func() { s.redis.Skew += by }) }

func (s *server) values() map[string]string { return s.valuesAt(time.Now()) }

// valuesAt returns the values that the server had at an instant.
func (s *server) valuesAt(at time.Time) (values map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.history {
		if one.at.After(at) {
			break
		}
		values = one.values
	}
	return values
}

// execute executes commands that were sent in a life of the server. If that is over, so is their
// connection.
func (s *server) execute(life int, commands []redisstore.Command) []redisstore.Reply {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away || life != s.life {
		return failed(commands, errRefused)
	}
	asked := make([]fakeredis.Command, len(commands))
	for i, c := range commands {
		asked[i] = fakeredis.Command(c)
	}
	replies := make([]redisstore.Reply, len(commands))
	for i, reply := range s.redis.Do(context.Background(), asked) {
		replies[i] = redisstore.Reply(reply)
	}
	s.history = append(s.history, snapshot{time.Now(), maps.Clone(s.redis.Values)})
	return replies
}

// A client is the connection of a process. It gives up after its own timeout, and not after that of
// the store, because the store counts by what the scheduler of a machine does: no seed decides that.
type client struct {
	server *server
	slot   int // of its process

	mu       sync.Mutex // protects the fields below
	rng      *rand.Rand // decides on latencies
	dead     bool       // whether the process was killed
	executed time.Time  // when the commands of the latest reply were executed, or may be
}

const clientTimeout = 50 * time.Millisecond

var (
	errRefused = errors.New("connection refused")
	errNoReply = errors.New("i/o timeout")
)

// Do implements redisstore.Conn. Each step ends at an instant of its own, so that the order of
// what happens does not depend on the scheduler.
func (c *client) Do(_ context.Context, commands []redisstore.Command) []redisstore.Reply {
	if c.isDead() {
		return failed(commands, errRefused)
	}
	c.mu.Lock()
	there, back := c.latency(), c.latency()
	lost, late := c.rng.Float64(), c.rng.Float64()
	c.mu.Unlock()
	c.server.mu.Lock()
	life, by := c.server.life, c.server.lateBy
	lost, late = lost-c.server.lost, late-c.server.late
	c.server.mu.Unlock()

	sent := time.Now()
	// Somewhat later, because the library makes pauses as long as the timeout: what follows one
	// would meet what follows the other.
	giveUp := instant(sent.Add(clientTimeout+back), replied+c.slot)
	if late < 0 {
		arrives := instant(sent.Add(clientTimeout+by), tardy)
		go func() {
			time.Sleep(time.Until(arrives))
			c.server.execute(life, commands)
		}()
		time.Sleep(time.Until(giveUp))
		return c.reply(arrives, failed(commands, errNoReply))
	}
	time.Sleep(time.Until(instant(sent.Add(there), received+c.slot)))
	at := time.Now()
	replies := c.server.execute(life, commands)
	if errors.Is(replies[0].Err, errRefused) {
		at = time.Time{}
	} else if lost < 0 {
		time.Sleep(time.Until(giveUp))
		return c.reply(at, failed(commands, errNoReply))
	}
	time.Sleep(time.Until(instant(at.Add(back), replied+c.slot)))
	return c.reply(at, replies)
}

// reply notes when the commands were executed.
func (c *client) reply(executed time.Time, replies []redisstore.Reply) []redisstore.Reply {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.executed = executed
	return replies
}

// die ends the process: it sends nothing any more.
func (c *client) die() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dead = true
}

func (c *client) isDead() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dead
}

// latency returns how long a message takes. The caller holds c.mu.
func (c *client) latency() time.Duration {
	return between(c.rng, 100*time.Microsecond, 2*time.Millisecond)
}

// Server, OneServer, NoAnswer and Redial implement redisstore.Conn.
func (c *client) Server(string) (name string, known bool) { return "", true }
func (c *client) OneServer() bool                         { return true }
func (c *client) NoAnswer(string) error                   { return nil }
func (c *client) Redial(context.Context, string)          {}

func failed(commands []redisstore.Command, err error) []redisstore.Reply {
	replies := make([]redisstore.Reply, len(commands))
	for i := range replies {
		replies[i].Err = err
	}
	return replies
}

// One order is left to the scheduler: if the first answer after an outage makes a process look for a
// hold, and another request waits for that answer, they share a command or not. Of 2,500 seeds that
// ran twice, one differed.
//
// What happens is kept apart by the last four bits of its nanosecond. The pauses of the library
// are multiples of 16 ns, and so keep them.
const (
	planned  = 0
	received = 1                    // by the server, from the first process and the others
	replied  = received + processes // to them
	tardy    = replied + processes
	apart    = 16
)

// instant returns the first instant from at on of those that are kept for what happens.
func instant(at time.Time, what int) time.Time {
	return at.Add(time.Duration(((int64(what)-at.UnixNano())%apart + apart) % apart))
}
