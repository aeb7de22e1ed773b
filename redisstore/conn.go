package redisstore

import (
	"context"
	"time"
)

// A Conn is what a [Store] needs of a client of Redis. Modules redisstore/goredis and
// redisstore/rueidis make one of the clients that they are named after.
type Conn interface {
	// Do sends a command to where its key lives, and returns the reply, any bytes. An
	// error that the server replied begins with its code, such as NOSCRIPT.
	//
	// It sends the command at most once, because an answer that does not come leaves
	// open whether the command was carried out; only a cluster's redirections are
	// followed. A command that has not been sent when ctx ends is not sent any more, if
	// that can be helped. The store does not wait for Do longer than until then, but Do
	// must return sometime, by the client's own timeouts. Any number of goroutines call
	// it at once; to send what they ask in one round trip is up to the client.
	Do(ctx context.Context, c Command) (reply string, err error)
}

// A Cluster is a Conn that knows on which of several servers a key lives. Each server has
// a breaker of its own then, see [WithBreakers].
type Cluster interface {
	Conn
	// Server names the server of a key, or returns "" if it is not known.
	Server(ctx context.Context, key string) string
}

// A Command is one that is sent to Redis.
type Command struct {
	Words []string // its name and its arguments, any bytes
	Key   int      // which of them is the key
}

// A Breaker keeps commands from a server that does not answer. It is the circuit
// breaker of github.com/sony/gobreaker/v2, in the words of its
// TwoStepCircuitBreaker: Allow returns an error if the command is not to be sent,
// and otherwise a function to report the command's outcome to. [context.Canceled] says
// that it failed while this process did not run, so that nothing is known of the server.
type Breaker interface {
	Allow() (done func(err error), err error)
}

// How the breakers of goredis and rueidis are set.
const (
	BreakerFailures = 5           // failures in a row after which it opens
	BreakerCooldown = time.Second // how long it stays open, before one command tries again
)
