package goredis

import (
	"errors"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/redisstore"
)

// redisstore/servers tests the store with real servers.

func TestNew(t *testing.T) {
	c := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // nothing is sent
	defer c.Close()
	s, err := New(c)
	require.NoError(t, err)
	assert.NotNil(t, s)
}

func TestNilClient(t *testing.T) {
	var none *redis.Client
	for _, c := range []redis.UniversalClient{nil, none} {
		_, err := New(c)
		assert.ErrorIs(t, err, ratelimit.ErrInvalid)
		assert.ErrorContains(t, err, "nil")
	}
}

func TestNilOption(t *testing.T) {
	c := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // nothing is sent
	defer c.Close()
	_, err := New(c, redisstore.WithPrefix("x"), nil)
	assert.ErrorIs(t, err, ratelimit.ErrInvalid)
	assert.ErrorContains(t, err, "option 1 of New is nil")
}

func TestBreakerState(t *testing.T) {
	b := newBreaker()
	for range redisstore.BreakerFailures {
		assert.Equal(t, "closed", b.(breaker).State())
		done, err := b.Allow()
		require.NoError(t, err)
		done(errors.New("no answer"))
	}
	assert.Equal(t, "open", b.(breaker).State())
	_, err := b.Allow()
	assert.Error(t, err)
}
