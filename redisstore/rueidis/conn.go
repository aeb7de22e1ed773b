package rueidis

import (
	"context"

	"github.com/redis/rueidis"

	"github.com/ratelimit-go/ratelimit/redisstore"
)

// NewConn returns what a store needs of client, for those who put something around
// it, and give that to [redisstore.New].
func NewConn(client rueidis.Client) redisstore.Conn { return conn{client} }

// A conn is a redisstore.Conn of a client.
type conn struct{ client rueidis.Client }

// Scattered implements [redisstore.Scattered].
func (c conn) Scattered() bool { return c.client.Mode() == rueidis.ClientModeCluster }

// Do implements [redisstore.Conn]. The client gets a context that does not end: where
// a call has a connection for itself, it would close that at the end, for all. Nor
// does it send anything again but what is marked as read-only, and nothing here is.
func (c conn) Do(ctx context.Context, commands []*redisstore.Command) {
	if err := ctx.Err(); err != nil {
		for _, of := range commands {
			of.Err = err
		}
		return
	}
	ctx = context.WithoutCancel(ctx)
	if len(commands) == 1 {
		set(commands[0], c.client.Do(ctx, c.build(commands[0])))
		return
	}
	built := make(rueidis.Commands, len(commands))
	for i, of := range commands {
		built[i] = c.build(of)
	}
	for i, res := range c.client.DoMulti(ctx, built...) {
		set(commands[i], res)
	}
}

func (c conn) build(of *redisstore.Command) rueidis.Completed {
	words, key := of.Words, of.Key
	return c.client.B().Arbitrary(words[:key]...).Keys(words[key]).Args(words[key+1:]...).Build()
}

// set gives a command its reply, as text. The client reads each into memory of its
// own, and takes ERR off an error.
func set(of *redisstore.Command, res rueidis.RedisResult) {
	err := res.Error()
	if err == nil {
		of.Reply, _ = res.ToString() // DEL's is a number, which nobody asks for
		return
	}
	of.Err = err
	if _, ok := rueidis.IsRedisErr(err); ok {
		if text, _ := res.ToString(); text != "" && text != err.Error() {
			of.Err = &replyError{text, err}
		}
	}
}

// A replyError is an error reply as it came.
type replyError struct {
	text string
	err  error
}

func (e *replyError) Error() string { return e.text }
func (e *replyError) Unwrap() error { return e.err }
