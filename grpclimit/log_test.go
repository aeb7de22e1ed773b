package grpclimit_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/grpclimit"
)

// TestLogIsLimited checks that clients cannot fill the log: there is a line a second, and it says
// how many were omitted.
func TestLogIsLimited(t *testing.T) {
	logged := quiet(t)
	synctest.Test(t, func(t *testing.T) {
		server, err := grpclimit.NewServer(ratelimit.Must(ratelimit.New(ratelimit.Unlimited{})),
			grpclimit.WithKey(func(*grpclimit.Call) (string, error) { return "", errors.New("the database is away") }))
		require.NoError(t, err)
		call := func() {
			_, err := server.Unary(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "/package.Service/Method"},
				func(context.Context, any) (any, error) { return nil, nil })
			assert.Equal(t, codes.InvalidArgument, status.Code(err))
		}
		for range 3 {
			call()
		}
		assert.Equal(t, 1, strings.Count(logged.String(), "\n"), logged.String())
		assert.NotContains(t, logged.String(), "left_out")
		time.Sleep(time.Second)
		call()
		call()
		assert.Equal(t, 2, strings.Count(logged.String(), "\n"), logged.String())
		assert.Contains(t, logged.String(), "left_out=2")
	})
}
