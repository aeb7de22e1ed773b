package goredis

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit/redisstore"
)

// NewConn returns a Conn that sends commands through client. Use it to wrap the Conn, for
// example to measure calls, and pass the wrapper to [redisstore.New]. Otherwise use [New].
func NewConn(client redis.UniversalClient) redisstore.Conn {
	return newConn(client)
}

// A conn implements redisstore.Conn for a client.
type conn struct {
	client redis.UniversalClient
	dials  *dials
	nodes  *nodeMap // if the client is that of a cluster
}

func newConn(client redis.UniversalClient) redisstore.Conn {
	c := &conn{client: client, dials: &dials{failed: map[string]failure{}}}
	switch client := client.(type) {
	case *redis.Client:
		c.dials.watch(client)
		if setsDeadlines(client) {
			return newPromptConn(c, client)
		}
	case *redis.ClusterClient:
		c.nodes = &nodeMap{client: client}
		client.OnNewNode(c.dials.watch)
	case *redis.Ring:
		client.OnNewNode(c.dials.watch)
		_ = client.ForEachShard(context.Background(),
			func(_ context.Context, shard *redis.Client) error {
				c.dials.watch(shard)
				return nil
			})
	}
	return c
}

// NoAnswer implements [redisstore.Conn].
func (c *conn) NoAnswer(server string) (dialError error) {
	c.nodes.doubt()
	return c.dials.latest(server)
}

// OneServer implements [redisstore.Conn].
func (c *conn) OneServer() bool {
	_, one := c.client.(*redis.Client)
	return one
}

// Server implements [redisstore.Conn]. Other clients than those below, such as an AutoPipeliner,
// do not say on which server a key is.
func (c *conn) Server(key string) (name string, known bool) {
	node := c.node(key)
	if node == nil {
		return "", false
	}
	return node.Options().Addr, true
}

// node returns the client of the server that has key, or nil if that is not known.
func (c *conn) node(key string) *redis.Client {
	switch client := c.client.(type) {
	case *redis.Client:
		return client
	case *redis.ClusterClient:
		return c.nodes.of(key)
	case *redis.Ring:
		shard, err := client.GetShardClientForKey(key)
		if err != nil {
			return nil
		}
		return shard
	}
	return nil
}

// A nodeMap knows which node of a cluster has a key. A client asks the cluster for its nodes when
// it needs them for the first time, and waits for that: so a nodeMap lets it ask in a goroutine.
// After that, the client asks again in the background.
type nodeMap struct {
	client *redis.ClusterClient
	known  atomic.Bool // whether the client knows the nodes
	asking atomic.Bool
}

// of returns the client of the node that has key, or nil if that is not known.
func (m *nodeMap) of(key string) *redis.Client {
	if !m.known.Load() {
		if m.asking.CompareAndSwap(false, true) {
			go m.ask(key)
		}
		return nil
	}
	node, err := m.client.MasterForKey(context.Background(), key)
	if err != nil {
		return nil // no node has the slot
	}
	return node
}

// ask lets the client ask for the nodes.
func (m *nodeMap) ask(key string) {
	defer m.asking.Store(false)
	_, err := m.client.MasterForKey(context.Background(), key)
	if err == nil {
		m.known.Store(true)
	}
}

// doubt lets the client ask for the nodes again, because one of them has not answered or has
// refused a command: another one may have its slots by now. The client asks in the background, and
// not more often than every 0.2 seconds. By itself, it asks only once in
// ClusterStateReloadInterval.
func (m *nodeMap) doubt() {
	if m != nil {
		m.client.ReloadState(context.Background())
	}
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
func (c *conn) Do(ctx context.Context, commands []redisstore.Command) []redisstore.Reply {
	replies := make([]redisstore.Reply, len(commands))
	err := ctx.Err() // which an AutoPipeliner does not check
	if err != nil {
		for i := range replies {
			replies[i].Err = err
		}
		return replies
	}
	if len(commands) == 1 {
		replies[0] = c.doOne(ctx, commands[0])
		return replies
	}
	var pipe redis.Pipeliner
	node := c.node(commands[0].Words[commands[0].Key])
	if node != nil {
		pipe = node.Pipeline()
	} else {
		pipe = c.client.Pipeline() // the client finds the servers
	}
	cmds := make([]*command, len(commands))
	for i, command := range commands {
		cmds[i] = newCommand(ctx, command)
		_ = pipe.Process(ctx, cmds[i]) // only adds it
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	for i, cmd := range cmds {
		replies[i] = c.replyTo(cmd)
	}
	return replies
}

// doOne sends one command, and follows redirections.
func (c *conn) doOne(ctx context.Context, command redisstore.Command) redisstore.Reply {
	cmd := newCommand(ctx, command)
	_ = c.client.Process(ctx, cmd) // Result returns the same error, and waits if Process does not
	return c.replyTo(cmd)
}

// replyTo returns the reply to a command.
func (c *conn) replyTo(cmd *command) redisstore.Reply {
	text, err := cmd.Result() // the store does not use the number that DEL returns
	if err != nil {
		c.dials.told(err)
		if _, isReply := errors.AsType[redis.Error](err); !isReply {
			c.nodes.doubt()
		}
	}
	return redisstore.Reply{Text: text, Err: err}
}

// Redial implements [redisstore.Conn]. The client has two pools of connections, of which it
// uses one for pipelines only, and each returns the connection that was used last. By itself, the
// client closes the connection of a reply that begins with READONLY, and of no other one.
func (c *conn) Redial(ctx context.Context, key string) {
	c.nodes.doubt()
	pipe := c.client.Pipeline()
	node := c.node(key)
	if node != nil {
		pipe = node.Pipeline()
		closeOne(ctx, node)
	}
	// After QUIT, the server closes the connection, and the client notices when there is no reply
	// to PING.
	_ = pipe.Process(ctx, newCommand(ctx, quit)) // only adds it
	_ = pipe.Process(ctx, newCommand(ctx, ping))
	_, _ = pipe.Exec(ctx)
}

// closeOne closes the connection that a client would use for the next command.
func closeOne(ctx context.Context, client *redis.Client) {
	single := client.EphemeralConn()
	_ = single.Process(ctx, newCommand(ctx, ping)) // takes a connection from the pool
	_ = single.Close()                             // closes it
}

var (
	ping = redisstore.Command{Words: []string{"PING"}}
	quit = redisstore.Command{Words: []string{"QUIT"}}
)
