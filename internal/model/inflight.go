package model

import (
	"math/big"

	"github.com/ratelimit-go/ratelimit"
)

// inFlight is ratelimit.InFlight. A hold counts while it is open, and other events count for
// the timeout.
type inFlight struct {
	history
	most    int
	timeout instant
}

func newInFlight(a ratelimit.InFlight) *inFlight {
	return &inFlight{most: a.Limit, timeout: instant(a.Timeout)}
}

// flying counts the events that are not over at t.
func (f *inFlight) flying(t instant) *big.Int {
	return f.count(func(b batch) bool { return t < b.until })
}

// settle says that the events are over, however many of them happened.
func (f *inFlight) settle(index, _ int) { f.history.settle(index, 0) }

func (f *inFlight) limit() int                      { return f.most }
func (f *inFlight) grantable(t instant, n int) bool { return fits(f.flying(t), n, f.most) }
func (f *inFlight) forgotten(t instant) bool        { return f.flying(t).Sign() == 0 }

func (f *inFlight) charge(t instant, n int) {
	f.add(batch{at: t, n: n, until: t + f.timeout})
}

func (f *inFlight) clone() part { return &inFlight{f.history.clone(), f.most, f.timeout} }
