package redisstore

import (
	"context"
	"time"
)

// A Conn is what a [Store] needs of a client of Redis. Modules redisstore/goredis and
// redisstore/rueidis make one of the clients that they are named after.
type Conn interface {
	// Do sends each of the commands to where its key lives, those for one server
	// together, and sets the Reply or the Err of each. An error that the server
	// replied begins with its code, NOSCRIPT for one.
	//
	// It sends each command at most once, for an answer that did not come leaves open
	// whether the command was carried out; only a cluster's redirections are followed.
	// What has not been sent when ctx ends is not sent any more, if that can be helped.
	// The store does not wait for Do longer than until then, but Do must return
	// sometime, by the client's own timeouts. Any number of goroutines may call it.
	Do(ctx context.Context, commands []*Command)
}

// A Scattered is a Conn that may say that keys live on several servers. Then commands
// on different keys are sent one by one, so that a server that hangs holds up nothing
// but its own.
type Scattered interface {
	Conn
	Scattered() bool
}

// A Command is one that is sent to Redis, and what came of it. Its words and the
// reply are any bytes.
type Command struct {
	Words []string // its name and its arguments
	Key   int      // which of them is the key
	Reply string
	Err   error
}

// A Breaker keeps calls from a server that does not answer. It is the circuit
// breaker of github.com/sony/gobreaker/v2, in the words of its
// TwoStepCircuitBreaker: Allow returns an error if the call is not to be made,
// and otherwise what is to be told how the call went. [context.Canceled] says that it
// was over before anything could be known.
type Breaker interface {
	Allow() (done func(err error), err error)
}

// How the breakers of goredis and rueidis are set.
const (
	BreakerFailures = 5           // failures in a row after which it opens
	BreakerCooldown = time.Second // how long it stays open, before one call tries again
)
