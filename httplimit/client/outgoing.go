package client

import (
	"slices"
	"time"
)

// An outgoing is what is on its way to a server, whether or not the server has counted it.
type outgoing struct {
	queued   int // requests that are about to be sent
	underWay underWay
}

// An underWay has the time of each request that was sent, and is not answered yet, in that order.
type underWay []time.Time

// add adds a request that is sent now.
func (u *underWay) add(now time.Time) { *u = append(*u, now) }

// remove removes a request that was sent at the given time.
func (u *underWay) remove(sent time.Time) {
	if i, found := slices.BinarySearchFunc(*u, sent, time.Time.Compare); found {
		*u = slices.Delete(*u, i, i+1)
	}
}

// after returns the requests that were sent after t.
func (u underWay) after(t time.Time) underWay {
	i, _ := slices.BinarySearchFunc(u, t, func(sent, t time.Time) int {
		if sent.After(t) {
			return 1
		}
		return -1
	})
	return u[i:]
}
