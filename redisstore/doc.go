// Package redisstore shares limits through Redis.
package redisstore
