package redisstore

import (
	"context"
	"time"
)

// A Conn is what a [Store] needs of a client of Redis: the few commands that it
// sends. Modules redisstore/goredis and redisstore/rueidis make one of the
// clients that they are named after.
//
// Its methods may be called by any number of goroutines. They return at ctx's
// end at the latest, send each command at most once (an answer that did not
// come leaves open whether the command was carried out), except that a cluster's
// redirection is followed, and return an error reply of the server as an error
// whose text begins with its code, NOSCRIPT for one.
type Conn interface {
	// EvalSha runs the script that has the given SHA-1, in hexadecimal, with one
	// key, where that key lives (EVALSHA). Keys, arguments and the reply are any
	// bytes.
	EvalSha(ctx context.Context, sha, key string, args []string) (reply string, err error)

	// Eval is EvalSha with the script itself (EVAL).
	Eval(ctx context.Context, script, key string, args []string) (reply string, err error)

	// Del deletes key, if it exists (DEL).
	Del(ctx context.Context, key string) error
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
