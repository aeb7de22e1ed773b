package goredis

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/redisstore"
)

var _ redisstore.Scanner = (*conn)(nil)

// Scan implements [redisstore.Scanner].
func (c *conn) Scan(ctx context.Context, pattern string, count int) iter.Seq2[[]string, error] {
	return func(yield func([]string, error) bool) {
		servers, err := c.servers(ctx)
		if err != nil {
			yield(nil, err)
			return
		}
		for _, server := range servers {
			if !scanServer(ctx, server, pattern, count, yield) {
				return
			}
		}
	}
}

// scanServer yields the names of the keys of one server, and reports whether to go on with the
// next one.
func scanServer(
	ctx context.Context,
	server *redis.Client,
	pattern string,
	count int,
	yield func([]string, error) bool,
) bool {
	cursor := uint64(0)
	for {
		names, next, err := server.Scan(ctx, cursor, pattern, int64(count)).Result()
		if err != nil {
			return yield(nil, fmt.Errorf("goredis: SCAN on %s: %w", server.Options().Addr, err))
		}
		if !yield(names, nil) {
			return false
		}
		if next == 0 {
			return true
		}
		cursor = next
	}
}

// servers returns a client of each server that has keys of its own, in the order of the addresses.
func (c *conn) servers(ctx context.Context) ([]*redis.Client, error) {
	var mu sync.Mutex // protects servers
	var servers []*redis.Client
	add := func(_ context.Context, server *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		servers = append(servers, server)
		return nil
	}
	var err error
	switch client := c.client.(type) {
	case *redis.Client:
		return []*redis.Client{client}, nil
	case *redis.ClusterClient:
		err = client.ForEachMaster(ctx, add)
	case *redis.Ring:
		err = client.ForEachShard(ctx, add)
	default:
		return nil, fmt.Errorf("goredis: a %T does not say which servers it has: to list keys, "+
			"make another store with a *redis.Client, *redis.ClusterClient or *redis.Ring: %w",
			c.client, ratelimit.ErrInvalid)
	}
	if err != nil {
		return nil, fmt.Errorf("goredis: the list of servers: %w", err)
	}
	slices.SortFunc(servers, func(a, b *redis.Client) int {
		return strings.Compare(a.Options().Addr, b.Options().Addr)
	})
	return servers, nil
}
