package rueidis

import (
	"testing"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/redisstore"
)

// redisstore/servers tests the store with real servers.

func TestNilClient(t *testing.T) {
	_, err := New(nil)
	assert.ErrorIs(t, err, ratelimit.ErrInvalid)
	assert.ErrorContains(t, err, "nil")
}

func TestNilOption(t *testing.T) {
	var client struct{ rueidis.Client } // nothing is sent
	_, err := New(client, redisstore.WithPrefix("x"), nil)
	assert.ErrorIs(t, err, ratelimit.ErrInvalid)
	assert.ErrorContains(t, err, "option 1 of New is nil")
}
