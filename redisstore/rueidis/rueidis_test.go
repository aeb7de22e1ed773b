package rueidis

import (
	"errors"
	"testing"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/redisstore"
)

// integration/redis tests the store with real servers.

func TestNilClient(t *testing.T) {
	_, err := New(nil)
	assert.ErrorIs(t, err, ratelimit.ErrInvalid)
	assert.ErrorContains(t, err, "nil")
	assert.Regexp(t, "^rueidis: ", err)
}

func TestNilOption(t *testing.T) {
	var client struct{ rueidis.Client } // nothing is sent
	_, err := New(client, redisstore.WithPrefix("x"), nil)
	assert.ErrorIs(t, err, ratelimit.ErrInvalid)
	assert.ErrorContains(t, err, "option 1 of New is nil")
	_, err = New(client, nil)
	assert.ErrorContains(t, err, "option 0 of New is nil")
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
