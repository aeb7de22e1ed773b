package redisstore

import (
	"context"
	"iter"
	"time"
)

// A Conn sends the commands of a [Store] to Redis. The modules redisstore/goredis,
// redisstore/rueidis and redisstore/valkey implement it for the clients they are named after. To
// measure or change calls, embed the Conn that their NewConn returns. Its methods may be called
// concurrently.
type Conn interface {
	// Server returns the name of the server that has a key, which should be its address, or "" if
	// the client has only one server. The commands on keys of one server are sent together. Each
	// server has its own breaker, see [WithBreaker], and [Stats] and errors have its name.
	//
	// If the client does not know the server of the key, known is false. The commands on such keys
	// are sent one by one, and have one breaker.
	//
	// Server is called for each call, before the call is queued. So it must not wait for a server.
	Server(key string) (name string, known bool)

	// OneServer reports whether all keys are on one server that is not a node of a cluster.
	// [ratelimit.TakeAll] then sends one command for any of its keys. Otherwise, only keys with
	// the same {tag} in their names share a command, because others may be on several servers, or
	// in several slots of a cluster.
	OneServer() bool

	// Do sends commands in one round trip, and returns a reply to each of them, in their order. If
	// it returns more or fewer, all commands fail. The server executes them in their order. Their
	// keys are on the same server, unless that has changed a moment ago.
	//
	// Do sends each command at most once, because a command without an answer may have been
	// executed. It may follow the redirections of a cluster. It must do so if there is only one
	// command: the store sends a command by itself if the reply to it was MOVED or ASK.
	//
	// If ctx ends before a command is sent, Do should not send it. The store stops waiting when
	// ctx ends. Do must still return eventually, by the client's own timeouts.
	Do(ctx context.Context, commands []Command) []Reply

	// NoAnswer says that the server with that name has not answered in time, or any server if the
	// name is "". The Conn may have its client look for the server again, and must not wait for
	// that. NoAnswer returns the error of the latest attempt to connect, because a client may try
	// that for longer than the store waits. It returns nil if the attempt succeeded or was made
	// more than a second ago, and if the client does not tell.
	NoAnswer(server string) (dialError error)

	// Redial closes a connection that the client uses for commands on key, so that it connects
	// again. The store calls Redial when a server replies that it carries out no command for now,
	// because it is a replica, loads its data, or does not know the password any more. A name or a
	// proxy may lead to another server by now, such as the new primary after a failover, while the
	// client keeps its connections to the old one.
	//
	// If there are several connections that the client chooses from, Redial closes any one: the
	// store calls it again while there are such replies, but only once at a time for each server.
	// Commands that share the connection may fail. The store stops waiting when ctx ends, as for
	// Do.
	Redial(ctx context.Context, key string)
}

// A Scanner is what a [Conn] is as well if it can list keys, for [Store.Scan]. The Conns of
// goredis, rueidis and valkey are Scanners. If you embed one of them as a Conn, add a method Scan
// that calls its method Scan.
type Scanner interface {
	// Scan sends SCAN with MATCH and COUNT to each server, one after the other, until it has listed
	// all keys. In a cluster, the servers are the primaries. Scan yields the names in each reply,
	// and yields an error of a server or of its list of servers once. It goes on with the next
	// server after that. It sends nothing more once ctx has ended.
	Scan(ctx context.Context, pattern string, count int) iter.Seq2[[]string, error]
}

// A PromptConn is what a [Conn] is as well if it can stop waiting for a reply. Then a caller sends
// its command itself while nobody else sends any to the server, which saves the way to another
// goroutine and back. With other Conns, callers never do. The Conn of goredis is a PromptConn if
// its client is a [redis.Client]. If you embed it as a Conn, add a method DoPromptly that calls its
// method DoPromptly.
//
// [redis.Client]: https://pkg.go.dev/github.com/redis/go-redis/v9#Client
type PromptConn interface {
	// DoPromptly is Do for one command, and returns as soon as ctx ends. If it cannot return then,
	// it returns after the given time at the latest.
	DoPromptly(ctx context.Context, command Command, within time.Duration) Reply
}

// A Reply is the reply to a command.
type Reply struct {
	Text string // which may be any bytes

	// Err is nil, or says why there is no reply. If the server replied with an error, the text of
	// Err begins with the error's code, such as NOSCRIPT.
	Err error
}

// A Command is a command for Redis.
type Command struct {
	Words []string // the command's name and its arguments, which may be any bytes

	// Key is the index of the key in Words. If there are several, it is that of the first: the
	// others follow it, and are in its slot or, with OneServer, on its server.
	Key int
}
