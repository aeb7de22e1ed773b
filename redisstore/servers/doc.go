// Package servers has no code: its tests run package redisstore on real servers, a
// cluster, replicas and broken connections. It is a module of its own so that what
// it needs for that is nobody else's dependency.
package servers
