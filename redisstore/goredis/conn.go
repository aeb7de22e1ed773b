package goredis

import (
	"context"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit/redisstore"
)

// NewConn returns what a store needs of client, for those who put something around
// it, and give that to [redisstore.New].
func NewConn(client redis.UniversalClient) redisstore.Conn { return conn{client} }

// A conn is a redisstore.Conn of a client.
type conn struct{ client redis.UniversalClient }

func (c conn) EvalSha(ctx context.Context, sha, key string, args []string) (string, error) {
	return c.do(ctx, script(ctx, "evalsha", sha, key, args))
}

func (c conn) Eval(ctx context.Context, text, key string, args []string) (string, error) {
	return c.do(ctx, script(ctx, "eval", text, key, args))
}

func (c conn) Del(ctx context.Context, key string) error {
	_, err := c.do(ctx, &command{redis.NewStringCmd(ctx, "del", key)})
	return err
}

// A command is sent once: the client sends others again after a failure that
// leaves open whether they were carried out. It follows redirections all the
// same.
type command struct{ *redis.StringCmd }

// NoRetry is what the client asks.
func (*command) NoRetry() bool { return true }

// Clone is the client's, which would forget NoRetry.
func (c *command) Clone() redis.Cmder {
	return &command{c.StringCmd.Clone().(*redis.StringCmd)}
}

// script returns the command that runs a script. It keeps no part of args, which
// are the caller's again when a call is abandoned. Arguments are pointers because
// a string in an interface is an allocation each.
func script(ctx context.Context, name, script, key string, args []string) *command {
	own := append(make([]string, 0, len(args)), args...)
	all := make([]any, 0, 4+len(args))
	all = append(all, name, script, "1", key)
	for i := range own {
		all = append(all, &own[i])
	}
	cmd := redis.NewStringCmd(ctx, all...)
	cmd.SetFirstKeyPos(3)
	return &command{cmd}
}

// do carries out cmd. The client looks at ctx while it waits for a connection
// and, if so configured, sets a socket's deadline by it, but a cancellation does
// not interrupt it. Hence a goroutine for calls that can end, which go-redis'
// own timeouts end if they are abandoned.
func (c conn) do(ctx context.Context, cmd *command) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	if ctx.Done() == nil {
		c.process(ctx, cmd)
		return cmd.Result()
	}
	done := signals.Get().(chan struct{})
	go c.signal(ctx, cmd, done)
	select {
	case <-done:
	case <-ctx.Done():
		select {
		case <-done: // the reply was in time
		default:
			return "", ctx.Err() // cmd and done are still in use
		}
	}
	signals.Put(done)
	return cmd.Result()
}

// signals holds channels of one element, all empty.
var signals = sync.Pool{New: func() any { return make(chan struct{}, 1) }}

func (c conn) signal(ctx context.Context, cmd *command, done chan<- struct{}) {
	c.process(ctx, cmd)
	done <- struct{}{}
}

// process returns when cmd has its result: Process itself does not wait for it
// if the client is an AsyncAutoPipeline.
func (c conn) process(ctx context.Context, cmd *command) {
	_ = c.client.Process(ctx, cmd) // it is cmd's too
	_ = cmd.Err()
}
