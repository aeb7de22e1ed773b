package client

import (
	"math"
	"time"
)

// A Quota is what a response says is left: the server grants Left more requests until Reset.
type Quota struct {
	// Left is how many requests the server still grants. If it is negative, the response does not
	// say it.
	Left int

	// Reset is the time until there is more quota.
	Reset time.Duration

	// Limit is how many requests the server grants when the whole quota is there, and 0 if that is
	// not known.
	Limit int

	// Window is the time in which the server grants Limit requests. If it is longer than Reset,
	// only what the limit allows in that time is back at the reset. If it is 0, it is not known,
	// and the whole quota is back.
	Window time.Duration
}

// mostLeft bounds numbers of requests, so that sums of them do not overflow.
const mostLeft = math.MaxInt / 2

// bounded returns q with all fields in bounds, and whether q says anything.
func (q Quota) bounded() (Quota, bool) {
	return Quota{
		Left:   min(max(0, q.Left), mostLeft),
		Reset:  min(max(0, q.Reset), longestRest),
		Limit:  min(max(0, q.Limit), mostLeft),
		Window: max(0, q.Window),
	}, q.Left >= 0
}

// enough reports whether so many requests are left that they need not be spread, or no wait helps.
func (q Quota) enough(left int) bool {
	return q.Reset == 0 || left > 0 && q.Limit > 0 && left > q.Limit/8
}

// every returns the time between two requests if so many are left and spread evenly.
func (q Quota) every(left int) time.Duration { return q.Reset / time.Duration(left+1) }

// isSlower reports whether q needs a slower pace than other.
func (q Quota) isSlower(other Quota) bool {
	if q.enough(q.Left) != other.enough(other.Left) {
		return other.enough(other.Left)
	}
	return q.every(q.Left) > other.every(other.Left)
}

// isWholeAfter reports whether the whole quota is back after d, which is Reset or longer.
func (q Quota) isWholeAfter(d time.Duration) bool { return d >= q.Window }

// after returns how many requests are left after d, which is Reset or longer, if none is sent. That
// is the limit if its window is not known or over. Otherwise it is what was left and what the limit
// allows in that time, because some servers say when there is any more quota, and not when all of
// it is back. That much is back a little later, as requests come less evenly than they are sent.
func (q Quota) after(d time.Duration) int {
	if q.isWholeAfter(d) {
		return q.Limit
	}
	back := max(1, int(float64(q.Limit)*(d.Seconds()/later(q.Window).Seconds())))
	return min(q.Limit, q.Left+back)
}
