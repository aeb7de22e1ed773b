package redis_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/redisstore"
)

// A loneServer has the methods of a Conn besides Do: there is one server, of whose connections
// nothing is known.
type loneServer struct{}

func (loneServer) Server(string) (name string, known bool) { return "", true }
func (loneServer) OneServer() bool                         { return true }
func (loneServer) NoAnswer(string) error                   { return nil }
func (loneServer) Redial(context.Context, string)          {}

// oneByOne answers commands one after another.
func oneByOne(
	commands []redisstore.Command, do func(c redisstore.Command) (string, error),
) []redisstore.Reply {
	replies := make([]redisstore.Reply, len(commands))
	for i, c := range commands {
		replies[i].Text, replies[i].Err = do(c)
	}
	return replies
}

// A plainConn is a connection without goroutines, for use in bubbles.
type plainConn struct {
	loneServer
	mu sync.Mutex
	c  net.Conn
	r  *bufio.Reader
}

func dial(t testing.TB, addr string) *plainConn {
	c, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return &plainConn{c: c, r: bufio.NewReader(c)}
}

func (p *plainConn) Do(_ context.Context, commands []redisstore.Command) []redisstore.Reply {
	return oneByOne(commands, p.do)
}

func (p *plainConn) do(c redisstore.Command) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(c.Words))
	for _, w := range c.Words {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(w), w)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, err := p.c.Write([]byte(b.String())); err != nil {
		return "", err
	}
	value, err := readValue(p.r)
	if err != nil {
		return "", err
	}
	line, rest, _ := strings.Cut(string(value), "\r\n")
	switch n, _ := strconv.Atoi(line[1:]); {
	case line[0] == '-':
		return "", errors.New(line[1:])
	case line[0] == '$' && n >= 0:
		return rest[:n], nil
	case line[0] == '$':
		return "", nil
	}
	return line[1:], nil
}
