package rueidis

import (
	"context"

	"github.com/redis/rueidis"

	"github.com/ratelimit-go/ratelimit/redisstore"
)

// NewConn returns a Conn that sends commands through client. Use it to wrap the Conn, for
// example to measure calls, and pass the wrapper to [redisstore.New], with
// [redisstore.WithBreaker], because that New sets no circuit breaker. Otherwise use [New].
func NewConn(client rueidis.Client) redisstore.Conn {
	if client == nil || client.Mode() == rueidis.ClientModeCluster {
		return conn{client: client} // a node that hangs would delay the replies of others
	}
	c := pipeline{conn{client: client}}
	if nodes := client.Nodes(); client.Mode() == rueidis.ClientModeStandalone && len(nodes) == 1 {
		for c.addr = range nodes {
		}
	}
	return c
}

// A conn implements redisstore.Conn for a client.
type conn struct {
	client rueidis.Client
	addr   string // of its only server, or ""
}

// Server implements [redisstore.Cluster].
func (c conn) Server(context.Context, string) string { return c.addr }

// A pipeline is a conn for one server. It implements redisstore.Pipeline.
type pipeline struct{ conn }

// OneServer implements [redisstore.Single].
func (pipeline) OneServer() bool { return true }

// Do implements [redisstore.Conn]. The client gets a context that does not end, because for
// a call that has the connection to itself, rueidis closes the connection when the context
// ends, which fails the calls of others. rueidis sends only read-only commands again, and
// marks none of these as such. It removes the prefix ERR from the text of errors; Do restores
// it.
func (c conn) Do(ctx context.Context, command redisstore.Command) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	return replyOf(c.client.Do(context.WithoutCancel(ctx), c.build(command)))
}

// Redial implements [redisstore.Redialer]. After QUIT, the server closes the connection, and
// rueidis notices when there is no reply to PING: otherwise the next command might be lost. Both
// get the key, which is ignored or returned, because rueidis chooses the node and the connection of
// a command by its key: in a cluster, that of other commands on the key, and otherwise one of up to
// four at random.
func (c conn) Redial(_ context.Context, key string) {
	quit := c.build(redisstore.Command{Words: []string{"QUIT", key}, Key: 1})
	ping := c.build(redisstore.Command{Words: []string{"PING", key}, Key: 1})
	c.client.DoMulti(context.Background(), quit, ping)
}

// DoEach implements [redisstore.Pipeline].
func (c pipeline) DoEach(ctx context.Context, commands []redisstore.Command) []redisstore.Reply {
	replies := make([]redisstore.Reply, len(commands))
	if err := ctx.Err(); err != nil {
		for i := range replies {
			replies[i].Err = err
		}
		return replies
	}
	built := make([]rueidis.Completed, len(commands))
	for i, command := range commands {
		built[i] = c.build(command)
	}
	for i, res := range c.client.DoMulti(context.WithoutCancel(ctx), built...) {
		replies[i].Text, replies[i].Err = replyOf(res)
	}
	return replies
}

func (c conn) build(command redisstore.Command) rueidis.Completed {
	words, key := command.Words, command.Key
	return c.client.B().Arbitrary(words[:key]...).Keys(words[key]).Args(words[key+1:]...).Build()
}

// replyOf returns what Do returns.
func replyOf(res rueidis.RedisResult) (string, error) {
	err := res.Error()
	if err == nil {
		reply, _ := res.ToString() // the store does not use the number that DEL returns
		return reply, nil
	}
	if _, ok := rueidis.IsRedisErr(err); ok {
		if text, _ := res.ToString(); text != "" && text != err.Error() {
			return "", &replyError{text, err}
		}
	}
	return "", err
}

// A replyError is an error reply with its full text.
type replyError struct {
	text string
	err  error
}

func (e *replyError) Error() string { return e.text }
func (e *replyError) Unwrap() error { return e.err }
