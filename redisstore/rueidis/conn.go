package rueidis

// Module valkey has the same code: valkey-go is rueidis with other names. The modules cannot
// share the code: their clients have different types. TestAdaptersAreAlike compares the modules.

import (
	"context"

	"github.com/redis/rueidis"

	"github.com/ratelimit-go/ratelimit/redisstore"
)

// NewConn returns a Conn that sends commands through client. Use it to wrap the Conn, for
// example to measure calls, and pass the wrapper to [redisstore.New]. Otherwise use [New].
func NewConn(client rueidis.Client) redisstore.Conn {
	c := &conn{client: client}
	if client == nil {
		return c
	}
	c.one = client.Mode() != rueidis.ClientModeCluster
	nodes := client.Nodes()
	if client.Mode() == rueidis.ClientModeStandalone && len(nodes) == 1 {
		for c.addr = range nodes {
		}
	}
	return c
}

// A conn implements redisstore.Conn for a client.
type conn struct {
	client rueidis.Client
	one    bool   // whether the client has one server, and is not that of a cluster
	addr   string // of the only server, or "" if that changes
}

// Server implements [redisstore.Conn]. In a cluster, the client does not say which node has a key.
func (c *conn) Server(string) (name string, known bool) { return c.addr, c.one }

// OneServer implements [redisstore.Conn].
func (c *conn) OneServer() bool { return c.one }

// NoAnswer implements [redisstore.Conn]. The error of a command says why the client cannot
// connect.
func (c *conn) NoAnswer(string) error { return nil }

// Do implements [redisstore.Conn]. The client gets a context that does not end, because for
// a call that has the connection to itself, rueidis closes the connection when the context
// ends, which fails the calls of others. rueidis sends only read-only commands again, and
// marks none of these as such. It removes the prefix ERR from the text of errors; Do restores
// it.
func (c *conn) Do(ctx context.Context, commands []redisstore.Command) []redisstore.Reply {
	replies := make([]redisstore.Reply, len(commands))
	err := ctx.Err()
	if err != nil {
		for i := range replies {
			replies[i].Err = err
		}
		return replies
	}
	unending := context.WithoutCancel(ctx)
	if len(commands) == 1 {
		replies[0] = replyOf(c.client.Do(unending, c.build(commands[0])))
		return replies
	}
	built := make([]rueidis.Completed, len(commands))
	for i, command := range commands {
		built[i] = c.build(command)
	}
	for i, result := range c.client.DoMulti(unending, built...) {
		replies[i] = replyOf(result)
	}
	return replies
}

// Redial implements [redisstore.Conn]. After QUIT, the server closes the connection, and
// rueidis notices when there is no reply to PING: otherwise the next command might be lost. Both
// get the key, which is ignored or returned, because rueidis chooses the node and the connection
// of a command by its key: in a cluster, that of other commands on the key, and otherwise one of up
// to four at random.
func (c *conn) Redial(_ context.Context, key string) {
	quit := c.build(redisstore.Command{Words: []string{"QUIT", key}, Key: 1})
	ping := c.build(redisstore.Command{Words: []string{"PING", key}, Key: 1})
	c.client.DoMulti(context.Background(), quit, ping)
}

func (c *conn) build(command redisstore.Command) rueidis.Completed {
	words, key := command.Words, command.Key
	return c.client.B().Arbitrary(words[:key]...).Keys(words[key]).Args(words[key+1:]...).Build()
}

// replyOf returns the reply that a result has.
func replyOf(result rueidis.RedisResult) redisstore.Reply {
	err := result.Error()
	if err == nil {
		text, _ := result.ToString() // the store does not use the number that DEL returns
		return redisstore.Reply{Text: text}
	}
	if _, ok := rueidis.IsRedisErr(err); ok {
		text, _ := result.ToString()
		if text != "" && text != err.Error() {
			return redisstore.Reply{Err: &replyError{text, err}}
		}
	}
	return redisstore.Reply{Err: err}
}

// A replyError is an error reply with its full text.
type replyError struct {
	text string
	err  error
}

func (e *replyError) Error() string { return e.text }
func (e *replyError) Unwrap() error { return e.err }
