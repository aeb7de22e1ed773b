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

// Do implements [redisstore.Conn]. The client gets a context that does not end: where
// a call has a connection for itself, it would close that at the end, for all. Nor
// does it send anything again but what is marked as read-only, and nothing here is. It
// reads each reply into memory of its own, and takes ERR off an error.
func (c conn) Do(ctx context.Context, of redisstore.Command) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	words, key := of.Words, of.Key
	cmd := c.client.B().Arbitrary(words[:key]...).Keys(words[key]).Args(words[key+1:]...).Build()
	res := c.client.Do(context.WithoutCancel(ctx), cmd)
	err := res.Error()
	if err == nil {
		reply, _ := res.ToString() // DEL's is a number, which nobody asks for
		return reply, nil
	}
	if _, ok := rueidis.IsRedisErr(err); ok {
		if text, _ := res.ToString(); text != "" && text != err.Error() {
			return "", &replyError{text, err}
		}
	}
	return "", err
}

// A replyError is an error reply as it came.
type replyError struct {
	text string
	err  error
}

func (e *replyError) Error() string { return e.text }
func (e *replyError) Unwrap() error { return e.err }
