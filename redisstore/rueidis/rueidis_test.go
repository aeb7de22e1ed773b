package rueidis

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/ratelimit-go/ratelimit"
)

// What the store does with the client is tested on servers, in redisstore/servers.

func TestNilClient(t *testing.T) {
	_, err := New(nil)
	assert.ErrorIs(t, err, ratelimit.ErrInvalid)
	assert.ErrorContains(t, err, "nil")
}
