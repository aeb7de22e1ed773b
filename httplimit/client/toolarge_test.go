package client_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/ratelimit-go/ratelimit/httplimit/client"
)

// TestIsTooLarge has messages as libraries send them with ResourceExhausted.
func TestIsTooLarge(t *testing.T) {
	for text, want := range map[string]bool{
		"grpc: received message larger than max (5000000 vs. 4194304)":   true, // grpc-go
		"trying to send message larger than max (5000000 vs. 4194304)":   true,
		"grpc: message after decompression larger than max (5 vs. 4)":    true,
		"grpc: message too large (5000000 bytes)":                        true,
		"CLIENT: Received message larger than max (5000000 vs. 4194304)": true, // C++
		"gRPC message exceeds maximum size 4194304: 5000000":             true, // Java
		"Received message exceeds the maximum configured message size.":  true, // .NET
		"message size 5000000 is larger than configured max 4194304":     true, // connect-go
		"message size 5000000 exceeds sendMaxBytes 4194304":              true,
		"read: exceeded 100 byte http.MaxBytesReader limit":              true,
		"rate limit exceeded": false,
		"quota exceeded for metric 'requests' and limit 'per minute'": false,
		"RESOURCE_EXHAUSTED: the maximum of 5 calls is reached":       false,
		"": false,
	} {
		assert.Equal(t, want, client.IsTooLarge(text), text)
	}
}
