package main

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/ratelimit-go/ratelimit"
)

// limited returns a middleware of an MCP server. It limits the calls of all tools by a user, and
// the calls of each tool in a session.
func limited(users, tools ratelimit.Limiter) mcp.Middleware {
	return func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, r mcp.Request) (mcp.Result, error) {
			call, ok := r.(*mcp.CallToolRequest)
			if !ok {
				return next(ctx, method, r)
			}
			user := userOf(call)
			tool := fmt.Sprintf("%q %q %q", user, call.Session.ID(), call.Params.Name)
			d, err := ratelimit.TakeAll(ctx, 1, ratelimit.For(users, user), ratelimit.For(tools, tool))
			if err != nil {
				log.Print(err) // the FailurePolicy has decided
			}
			if !d.Allowed {
				return refusal(d), nil
			}
			return next(ctx, method, r)
		}
	}
}

// userOf returns the user whose token came with a call. Calls without a token share a key.
func userOf(call *mcp.CallToolRequest) string {
	if extra := call.GetExtra(); extra != nil && extra.TokenInfo != nil {
		return extra.TokenInfo.UserID
	}
	return ""
}

// refusal is the result of a call that is over a limit. A model reads the text, and a program the
// metadata. A protocol error would not tell the model what to do.
func refusal(d ratelimit.Decision) *mcp.CallToolResult {
	result := &mcp.CallToolResult{IsError: true}
	text := "This tool may not be called."
	if d.RetryAfter < ratelimit.Never {
		wait := (d.RetryAfter + time.Second - 1).Truncate(time.Second) // rounded up
		text = fmt.Sprintf("Too many calls. Call it again in %v, not earlier.", wait)
		result.Meta = mcp.Meta{"retryAfterMs": d.RetryAfter.Milliseconds() + 1}
	}
	result.Content = []mcp.Content{&mcp.TextContent{Text: text}}
	return result
}
