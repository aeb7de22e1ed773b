//go:build !linux

package redis_test

import "time"

// nap sleeps for d.
func nap(d time.Duration) { time.Sleep(d) }
