package main

import (
	"context"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

// connect returns a client's session with a server of a user limit and a tool limit, and their clock.
func connect(t *testing.T, users, tools int) (*mcp.ClientSession, *clock.Mock) {
	t.Helper()
	clk := clock.NewMock()
	perMinute := func(n int) ratelimit.Limiter {
		return ratelimit.Must(ratelimit.New(ratelimit.SlidingLog{Limit: n, Window: time.Minute}, ratelimit.WithClock(clk)))
	}
	here, there := mcp.NewInMemoryTransports()
	server, err := newServer(perMinute(users), perMinute(tools)).Connect(t.Context(), there, nil)
	require.NoError(t, err)
	client, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "v1.0.0"}, nil).Connect(t.Context(), here, nil)
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = client.Close()
		_ = server.Wait()
	})
	return client, clk
}

// A call over the limit has a result that a model can read, and is granted when that says so.
func TestCalls(t *testing.T) {
	client, clk := connect(t, 100, 2)
	call := func() *mcp.CallToolResult {
		result, err := client.CallTool(t.Context(), &mcp.CallToolParams{Name: "time"})
		require.NoError(t, err)
		return result
	}
	for range 2 {
		assert.False(t, call().IsError)
		clk.Add(10 * time.Second)
	}
	refused := call()
	assert.True(t, refused.IsError)
	assert.Equal(t, "Too many calls. Call it again in 40s, not earlier.", refused.Content[0].(*mcp.TextContent).Text)
	assert.EqualValues(t, 40_001, refused.Meta["retryAfterMs"])
	_, err := client.ListTools(t.Context(), nil)
	require.NoError(t, err, "other methods are not limited")
	clk.Add(40 * time.Second)
	assert.False(t, call().IsError)
}

// The limit of a user holds for all tools together.
func TestUsers(t *testing.T) {
	client, _ := connect(t, 1, 100)
	for _, refused := range []bool{false, true} {
		result, err := client.CallTool(t.Context(), &mcp.CallToolParams{Name: "time"})
		require.NoError(t, err)
		assert.Equal(t, refused, result.IsError)
	}
	call := &mcp.CallToolRequest{Extra: &mcp.RequestExtra{TokenInfo: &auth.TokenInfo{UserID: "ann"}}}
	assert.Equal(t, "ann", userOf(call))
}

// A call that is never granted is told so.
func TestNever(t *testing.T) {
	blocked := ratelimit.Must(ratelimit.New(ratelimit.Blocked{}))
	d, err := blocked.Take(context.Background(), "k", 1)
	require.NoError(t, err)
	result := refusal(d)
	assert.Equal(t, "This tool may not be called.", result.Content[0].(*mcp.TextContent).Text)
	assert.Empty(t, result.Meta)
}
