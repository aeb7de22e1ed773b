package model

import (
	"math/big"

	"github.com/ratelimit-go/ratelimit"
)

// inFlight is ratelimit.InFlight.
type inFlight struct {
	history
	most    int
	timeout instant
}

func newInFlight(a ratelimit.InFlight) *inFlight {
	return &inFlight{most: a.Limit, timeout: instant(a.Timeout)}
}

// flying counts the events that are neither released nor timed out at t.
func (f *inFlight) flying(t instant) *big.Int {
	return f.count(func(b batch) bool { return t < b.at+f.timeout })
}

func (f *inFlight) limit() int                      { return f.most }
func (f *inFlight) grantable(t instant, n int) bool { return fits(f.flying(t), n, f.most) }
func (f *inFlight) forgotten(t instant) bool        { return f.flying(t).Sign() == 0 }
func (f *inFlight) charge(t instant, n int)         { f.add(batch{at: t, n: n}) }
func (f *inFlight) clone() part                     { return &inFlight{f.history.clone(), f.most, f.timeout} }
