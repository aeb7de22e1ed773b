// Package servers has no code. Its tests run package redisstore on real servers, a cluster,
// replicas and broken connections. It is a separate module so that other modules do not
// depend on what these tests need.
package servers
