package redis_test

import (
	"context"

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
