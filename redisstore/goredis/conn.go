package goredis

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit/redisstore"
)

// NewConn returns what a store needs of client, for those who put something around
// it, and give that to [redisstore.New].
func NewConn(client redis.UniversalClient) redisstore.Conn { return conn{client} }

// A conn is a redisstore.Conn of a client.
type conn struct{ client redis.UniversalClient }

// Server implements [redisstore.Cluster]: a shard of a ring and a node of a cluster have
// their addresses.
func (c conn) Server(ctx context.Context, key string) string {
	var node *redis.Client
	var err error
	switch client := c.client.(type) {
	case *redis.ClusterClient:
		node, err = client.MasterForKey(ctx, key)
	case *redis.Ring:
		node, err = client.GetShardClientForKey(key)
	}
	if err != nil || node == nil {
		return "" // the command says why
	}
	return node.Options().Addr
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

// newCommand has its words as pointers: a string in an interface is an allocation
// each.
func newCommand(ctx context.Context, c redisstore.Command) *command {
	words := make([]any, len(c.Words))
	for i := range c.Words {
		words[i] = &c.Words[i]
	}
	words[0] = c.Words[0] // which the client looks at itself
	cmd := redis.NewStringCmd(ctx, words...)
	cmd.SetFirstKeyPos(int8(c.Key))
	return &command{cmd}
}

// Do implements [redisstore.Conn].
func (c conn) Do(ctx context.Context, of redisstore.Command) (string, error) {
	if err := ctx.Err(); err != nil { // at which an AutoPipeliner does not look
		return "", err
	}
	cmd := newCommand(ctx, of)
	_ = c.client.Process(ctx, cmd) // it is cmd's too, and Result waits for it if the client does not
	return cmd.Result()            // DEL's is a number, which nobody asks for
}
