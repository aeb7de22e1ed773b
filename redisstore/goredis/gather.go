package goredis

import (
	"context"
	"sync"

	"github.com/redis/go-redis/v9"
)

// A gatherer sends commands through a client whose number of connections is limited. While
// there are as many commands in progress, further ones do not wait for a connection each:
// those that have arrived when one becomes free are sent through it together.
type gatherer struct {
	client *redis.Client

	mu      sync.Mutex // protects the fields below
	free    int        // connections without a command
	waiting []waiting
}

// A waiting command is sent unless its context has ended.
type waiting struct {
	*command
	ctx  context.Context
	done chan<- error
}

// maxTogether bounds the commands that are sent together, so that connections share them.
const maxTogether = 128

func newGatherer(client *redis.Client) *gatherer {
	return &gatherer{client: client, free: client.Options().PoolSize}
}

// process sends a command, and returns when it is answered or its context ends.
func (g *gatherer) process(ctx context.Context, cmd *command) error {
	g.mu.Lock()
	if g.free > 0 {
		g.free--
		g.mu.Unlock()
		defer g.next()
		return g.client.Process(ctx, cmd)
	}
	done := make(chan error, 1)
	g.waiting = append(g.waiting, waiting{cmd, ctx, done})
	g.mu.Unlock()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// next sends waiting commands, if there are any, through a connection that is now free.
func (g *gatherer) next() {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := min(len(g.waiting), maxTogether)
	if n == 0 {
		g.free++
		return
	}
	batch := g.waiting[:n:n]
	g.waiting = g.waiting[n:]
	go g.send(batch)
}

func (g *gatherer) send(batch []waiting) {
	defer g.next()
	pipe := g.client.Pipeline()
	for _, w := range batch {
		if w.ctx.Err() == nil {
			_ = pipe.Process(w.ctx, w.command) // only adds it
		}
	}
	_, _ = pipe.Exec(context.Background()) // each command has its own error
	for _, w := range batch {
		w.done <- w.Err()
	}
}
