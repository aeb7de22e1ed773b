package goredis

import (
	"context"
	"errors"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit/redisstore"
)

// NewConn returns a Conn that sends commands through client. Use it to wrap the Conn, for
// example to measure calls, and pass the wrapper to [redisstore.New], with
// [redisstore.WithBreaker], because that New sets no circuit breaker. Otherwise use [New].
func NewConn(client redis.UniversalClient) redisstore.Conn {
	return newConn(client)
}

// A conn implements redisstore.Conn for a client.
type conn struct {
	client redis.UniversalClient
	gather *gatherer // if the client has one pool of connections
	dials  *dials
}

// A pipeline is a conn for a client whose servers are known. It implements
// redisstore.Pipeline.
type pipeline struct{ conn }

func newConn(client redis.UniversalClient) redisstore.Conn {
	c := conn{client: client, dials: &dials{failed: map[string]failure{}}}
	switch client := client.(type) {
	case *redis.Client:
		c.gather = newGatherer(client)
		c.dials.watch(client)
		return pipeline{c}
	case *redis.ClusterClient:
		client.OnNewNode(c.dials.watch)
		return pipeline{c}
	case *redis.Ring:
		client.OnNewNode(c.dials.watch)
		_ = client.ForEachShard(context.Background(), func(_ context.Context, shard *redis.Client) error {
			c.dials.watch(shard)
			return nil
		})
		return pipeline{c}
	}
	return c
}

// DialError implements [redisstore.Dialer].
func (c conn) DialError(server string) error { return c.dials.latest(server) }

// OneServer implements [redisstore.Single].
func (c conn) OneServer() bool {
	_, one := c.client.(*redis.Client)
	return one
}

// Server implements [redisstore.Cluster].
func (c conn) Server(ctx context.Context, key string) string {
	node, err := c.node(ctx, key)
	if err != nil {
		return "" // the command will fail with the error
	}
	return node.Options().Addr
}

var errNoNode = errors.New("goredis: the client does not say on which server a key is")

// node returns the client of the server that has key.
func (c conn) node(ctx context.Context, key string) (node *redis.Client, err error) {
	switch client := c.client.(type) {
	case *redis.Client:
		return client, nil
	case *redis.ClusterClient:
		node, err = client.MasterForKey(ctx, key)
	case *redis.Ring:
		node, err = client.GetShardClientForKey(key)
	}
	if err == nil && node == nil {
		err = errNoNode
	}
	return node, err
}

// A command is a command that the client sends once. The client sends other commands again
// after failures, even if they may have been executed. It still follows redirections.
type command struct{ *redis.StringCmd }

// NoRetry tells the client not to send the command again.
func (*command) NoRetry() bool { return true }

// Clone replaces that of StringCmd, which would lose NoRetry.
func (c *command) Clone() redis.Cmder {
	return &command{c.StringCmd.Clone().(*redis.StringCmd)}
}

// newCommand returns a command whose words are pointers, because converting each string to
// an interface would allocate.
func newCommand(ctx context.Context, c redisstore.Command) *command {
	words := make([]any, len(c.Words))
	for i := range c.Words {
		words[i] = &c.Words[i]
	}
	words[0] = c.Words[0] // the client expects the name as a string
	cmd := redis.NewStringCmd(ctx, words...)
	cmd.SetFirstKeyPos(int8(c.Key))
	return &command{cmd}
}

// Do implements [redisstore.Conn].
func (c conn) Do(ctx context.Context, command redisstore.Command) (string, error) {
	if err := ctx.Err(); err != nil { // an AutoPipeliner does not check it
		return "", err
	}
	cmd := newCommand(ctx, command)
	if c.gather != nil {
		if err := c.gather.process(ctx, cmd); err != nil {
			c.dials.told(err)
			return "", err
		}
		return cmd.Val(), nil
	}
	_ = c.client.Process(ctx, cmd) // Result returns the same error, and waits if Process does not
	reply, err := cmd.Result()     // the store does not use the number that DEL returns
	if err != nil {
		c.dials.told(err)
	}
	return reply, err
}

// Redial implements [redisstore.Redialer]. The client has two pools of connections, of which it
// uses one for pipelines only, and each returns the connection that was used last. By itself, the
// client closes the connection of a reply that begins with READONLY, and of no other one.
func (c conn) Redial(ctx context.Context, key string) {
	pipe := c.client.Pipeline()
	if node, err := c.node(ctx, key); err == nil {
		pipe = node.Pipeline()
		single := node.EphemeralConn()
		_ = single.Process(ctx, newCommand(ctx, ping)) // takes a connection from the pool
		_ = single.Close()                             // closes it
	}
	// After QUIT, the server closes the connection, and the client notices when there is no reply
	// to PING.
	_ = pipe.Process(ctx, newCommand(ctx, quit)) // only adds it
	_ = pipe.Process(ctx, newCommand(ctx, ping))
	_, _ = pipe.Exec(ctx)
}

var (
	ping = redisstore.Command{Words: []string{"PING"}}
	quit = redisstore.Command{Words: []string{"QUIT"}}
)

// DoEach implements [redisstore.Pipeline].
func (c pipeline) DoEach(ctx context.Context, commands []redisstore.Command) []redisstore.Reply {
	replies := make([]redisstore.Reply, len(commands))
	cmds, nodes := make([]*command, len(commands)), map[*redis.Client][]int{}
	for i, command := range commands {
		node, err := c.node(ctx, command.Words[command.Key])
		if replies[i].Err = err; err == nil {
			cmds[i] = newCommand(ctx, command)
			nodes[node] = append(nodes[node], i)
		}
	}
	var wg sync.WaitGroup
	for node, indexes := range nodes { // one, as a rule
		wg.Go(func() {
			pipe := node.Pipeline()
			for _, i := range indexes {
				_ = pipe.Process(ctx, cmds[i]) // only adds it
			}
			_, _ = pipe.Exec(ctx) // each command has its own error
			for _, i := range indexes {
				replies[i].Text, replies[i].Err = cmds[i].Result()
			}
		})
	}
	wg.Wait()
	return replies
}
