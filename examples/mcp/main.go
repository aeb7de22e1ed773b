// Mcp is a server of tools for models, which limits the calls of its tools: each user may make 100
// calls a minute, and call each tool ten times a minute in a session. Its only tool tells the time.
// It speaks MCP over standard input and output:
//
//	go run ./examples/mcp
package main

import (
	"context"
	"log"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/ratelimit-go/ratelimit"
)

func main() {
	server := newServer(
		ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerMinute(100)})),
		ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerMinute(10)})))
	if err := server.Run(context.Background(), &mcp.StdioTransport{}); err != nil {
		log.Fatal(err)
	}
}

// newServer returns a server with a tool, whose calls are limited.
func newServer(users, tools ratelimit.Limiter) *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{Name: "clock", Version: "v1.0.0"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "time", Description: "tells the time"}, tellTime)
	server.AddReceivingMiddleware(limited(users, tools))
	return server
}

func tellTime(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
	text := &mcp.TextContent{Text: time.Now().Format(time.RFC3339)}
	return &mcp.CallToolResult{Content: []mcp.Content{text}}, nil, nil
}
