//go:build !linux

package servers

import "time"

// nap sleeps for d.
func nap(d time.Duration) { time.Sleep(d) }
