package redis_test

import (
	"syscall"
	"time"
)

// nap sleeps for d. time.Sleep sleeps for a millisecond at least if the process is idle.
func nap(d time.Duration) {
	if d <= 0 {
		return
	}
	left := syscall.NsecToTimespec(int64(d))
	for syscall.Nanosleep(&left, &left) == syscall.EINTR {
	}
}
