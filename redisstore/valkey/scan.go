package valkey

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"

	"github.com/valkey-io/valkey-go"

	"github.com/ratelimit-go/ratelimit/redisstore"
)

var _ redisstore.Scanner = (*conn)(nil)

// Scan implements [redisstore.Scanner].
func (c *conn) Scan(ctx context.Context, pattern string, count int) iter.Seq2[[]string, error] {
	return func(yield func([]string, error) bool) {
		nodes := c.client.Nodes()
		for _, addr := range slices.Sorted(maps.Keys(nodes)) {
			if !scanServer(ctx, addr, nodes[addr], pattern, count, yield) {
				return
			}
		}
	}
}

// scanServer yields the names of the keys of one server, unless it is a replica, which has the keys
// of another one. It reports whether to go on with the next server. The client gets a context that
// does not end, as in Do.
func scanServer(
	ctx context.Context,
	addr string,
	server valkey.Client,
	pattern string,
	count int,
	yield func([]string, error) bool,
) bool {
	unending := context.WithoutCancel(ctx)
	replica, err := isReplica(unending, server)
	if err != nil {
		return yield(nil, fmt.Errorf("valkey: HELLO on %s: %w", addr, err))
	}
	if replica {
		return true
	}
	cursor := uint64(0)
	for ctx.Err() == nil {
		scan := server.B().Scan().Cursor(cursor).Match(pattern).Count(int64(count)).Build()
		page, err := server.Do(unending, scan).AsScanEntry()
		if err != nil {
			return yield(nil, fmt.Errorf("valkey: SCAN on %s: %w", addr, err))
		}
		if !yield(page.Elements, nil) {
			return false
		}
		if page.Cursor == 0 {
			return true
		}
		cursor = page.Cursor
	}
	return false
}

// isReplica reports whether a server is a replica. It sends HELLO without arguments, because that
// changes nothing, and needs no permission.
func isReplica(ctx context.Context, server valkey.Client) (bool, error) {
	about, err := server.Do(ctx, server.B().Arbitrary("HELLO").Build()).AsMap()
	if err != nil {
		return false, err
	}
	field := about["role"]
	role, err := field.ToString()
	if err != nil {
		return false, err
	}
	return role == "replica" || role == "slave", nil
}
