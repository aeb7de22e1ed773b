package valkey

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/valkey-io/valkey-go"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/redisstore"
)

// integration/redis tests the store with real servers.

func TestNilClient(t *testing.T) {
	_, err := New(nil)
	assert.ErrorIs(t, err, ratelimit.ErrInvalid)
	assert.ErrorContains(t, err, "nil")
	assert.Regexp(t, "^valkey: ", err)
}

// An idleClient is a client to which nothing is sent.
type idleClient struct{ valkey.Client }

func (idleClient) Mode() valkey.ClientMode         { return valkey.ClientModeStandalone }
func (idleClient) Nodes() map[string]valkey.Client { return nil }

func TestNilOption(t *testing.T) {
	client := idleClient{}
	_, err := New(client, redisstore.WithPrefix("x"), nil)
	assert.ErrorIs(t, err, ratelimit.ErrInvalid)
	assert.ErrorContains(t, err, "option 1 of New is nil")
	_, err = New(client, nil)
	assert.ErrorContains(t, err, "option 0 of New is nil")
}
