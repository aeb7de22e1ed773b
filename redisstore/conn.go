package redisstore

import (
	"context"
	"time"
)

// A Conn sends the commands of a [Store] to Redis. Modules redisstore/goredis and
// redisstore/rueidis implement it for the clients they are named after.
type Conn interface {
	// Do sends a command to the server that holds its key, and returns the reply, which
	// may be any bytes. If the server replied with an error, the text of err begins with
	// the error's code, such as NOSCRIPT.
	//
	// Do sends the command at most once, except to follow a cluster's redirections,
	// because a command without an answer may have been executed. If ctx ends before the
	// command is sent, Do should not send it. The store stops waiting when ctx ends; Do
	// must still return eventually, by the client's own timeouts. Do may be called
	// concurrently. Whether concurrent commands share a round trip depends on the client.
	Do(ctx context.Context, c Command) (reply string, err error)
}

// A Cluster is a Conn that reports which server a key is on. Each server then has its own
// breaker, see [WithBreakers], and [Stats] and errors have its name.
type Cluster interface {
	Conn
	// Server returns the name of key's server, which should be its address, or "" if it is not
	// known.
	Server(ctx context.Context, key string) string
}

// A Dialer is a Conn that says why it has no connection, because its client tries to connect for
// longer than the store waits for Do.
type Dialer interface {
	Conn
	// DialError returns the error of the latest attempt to connect to the server with that name
	// (see [Cluster]), or to any server if the name is "". It returns nil if that succeeded, and
	// if it was made more than a second ago.
	DialError(server string) error
}

// A Redialer is a Conn that can give up a connection. A name or a proxy may lead to another server
// by now, such as the new primary after a failover, while the client keeps its connections to the
// old one. So the store calls Redial when a server replies that it carries out no command for now,
// because it is a replica, loads its data, or does not know the password any more.
type Redialer interface {
	Conn
	// Redial closes a connection that the client uses for commands on key, so that it connects
	// again. If there are several that the client chooses from, it closes any one: the store calls
	// Redial again while there are such replies, but only once at a time for each server.
	//
	// Commands that share the connection may fail. The store stops waiting when ctx ends, as for
	// Do.
	Redial(ctx context.Context, key string)
}

// A Pipeline is a Conn that sends several commands at once. [ratelimit.TakeEach] uses it, and
// calls Do for the commands concurrently if the Conn is not a Pipeline.
type Pipeline interface {
	Conn
	// DoEach sends commands in one round trip, and returns their replies in the same
	// order. What Conn says about Do holds for each command, except that it need not follow
	// redirections: the store calls Do for a command whose reply is MOVED or ASK. If the
	// Pipeline is a Cluster, the keys are on the same server, unless it has changed a moment
	// ago.
	DoEach(ctx context.Context, commands []Command) []Reply
}

// A Single is a Conn that says whether it has one server. [ratelimit.TakeAll] then sends one
// command for any of its keys. Otherwise, only keys with the same {tag} in their names share a
// command, because others may be on several servers, or in several slots of a cluster.
type Single interface {
	Conn
	// OneServer reports whether all keys are on one server that is not a node of a cluster.
	OneServer() bool
}

// A Reply is what Do returns.
type Reply struct {
	Text string
	Err  error
}

// A Command is a command for Redis.
type Command struct {
	Words []string // the command's name and its arguments, which may be any bytes

	// Key is the index of the key in Words. If there are several, it is that of the first: the
	// others follow it, and are in its slot or, with a Single, on its server.
	Key int
}

// A Breaker is a circuit breaker: it stops commands to a server that does not answer.
// The TwoStepCircuitBreaker of github.com/sony/gobreaker/v2 implements it. If a Breaker also
// has the method State() string, [Store.Stats] shows what it returns.
type Breaker interface {
	// Allow returns an error if the command must not be sent, and otherwise a function
	// to report the command's outcome to. The store calls that function once: with nil
	// if the command succeeded or its error concerns only the key, and otherwise with the
	// error. [context.Canceled] means that the outcome says nothing about the server:
	// this process did not run for most of the time, or a command that was in progress at
	// the same time failed before.
	Allow() (done func(err error), err error)
}

// Settings of the breakers of goredis and rueidis.
const (
	BreakerFailures = 5                      // consecutive failures that open the breaker: see [Breaker]
	BreakerCooldown = 500 * time.Millisecond // how long it stays open before it lets one command through
)
