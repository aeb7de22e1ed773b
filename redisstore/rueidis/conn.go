package rueidis

import (
	"context"
	"sync"

	"github.com/redis/rueidis"

	"github.com/ratelimit-go/ratelimit/redisstore"
)

// NewConn returns what a store needs of client, for those who put something around
// it, and give that to [redisstore.New].
func NewConn(client rueidis.Client) redisstore.Conn { return conn{client} }

// A conn is a redisstore.Conn of a client.
type conn struct{ client rueidis.Client }

// The client sends again what is marked as read-only. Neither EVALSHA nor EVAL
// nor DEL is.

func (c conn) EvalSha(ctx context.Context, sha, key string, args []string) (string, error) {
	return reply(c.do(ctx, c.client.B().Evalsha().Sha1(sha).Numkeys(1).Key(key).Arg(args...).Build()))
}

func (c conn) Eval(ctx context.Context, script, key string, args []string) (string, error) {
	return reply(c.do(ctx, c.client.B().Eval().Script(script).Numkeys(1).Key(key).Arg(args...).Build()))
}

func (c conn) Del(ctx context.Context, key string) error {
	res, err := c.do(ctx, c.client.B().Del().Key(key).Build())
	if err != nil {
		return err
	}
	return failure(res)
}

// A call is one that may be abandoned.
type call struct {
	client rueidis.Client
	ctx    context.Context
	cmd    rueidis.Completed
	res    rueidis.RedisResult
	done   chan struct{} // of one element
}

// calls holds calls whose channel is empty.
var calls = sync.Pool{New: func() any { return &call{done: make(chan struct{}, 1)} }}

// do carries out cmd. The client waits for another call's dialing, and for room
// in its pipeline, without looking at ctx, and where a call has the connection
// for itself it looks at the deadline alone, and closes the connection at it.
// Hence a goroutine, with a context that does not end, for calls that can: the
// client's own timeouts end it if it is abandoned.
func (c conn) do(ctx context.Context, cmd rueidis.Completed) (rueidis.RedisResult, error) {
	if err := ctx.Err(); err != nil {
		return rueidis.RedisResult{}, err
	}
	if ctx.Done() == nil {
		return c.client.Do(ctx, cmd), nil
	}
	k := calls.Get().(*call)
	k.client, k.ctx, k.cmd = c.client, context.WithoutCancel(ctx), cmd
	go k.run()
	select {
	case <-k.done:
	case <-ctx.Done():
		select {
		case <-k.done: // the reply was in time
		default:
			return rueidis.RedisResult{}, ctx.Err() // k is still in use
		}
	}
	res := k.res
	*k = call{done: k.done}
	calls.Put(k)
	return res, nil
}

func (k *call) run() {
	k.res = k.client.Do(k.ctx, k.cmd)
	k.done <- struct{}{}
}

// reply returns do's reply as text. The client reads each into memory of its own.
func reply(res rueidis.RedisResult, err error) (string, error) {
	if err != nil {
		return "", err
	}
	text, err := res.ToString()
	if failed := failure(res); failed != nil {
		return "", failed
	}
	return text, err
}

// failure returns the error that res is, if it is one.
func failure(res rueidis.RedisResult) error {
	err := res.Error()
	if _, ok := rueidis.IsRedisErr(err); !ok {
		return err
	}
	if text, _ := res.ToString(); text != "" && text != err.Error() {
		return &replyError{text, err}
	}
	return err
}

// A replyError is an error reply as it came: the client takes ERR off.
type replyError struct {
	text string
	err  error
}

func (e *replyError) Error() string { return e.text }
func (e *replyError) Unwrap() error { return e.err }
