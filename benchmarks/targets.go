package main

import (
	"fmt"

	"github.com/ratelimit-go/ratelimit/benchmarks/contenders"
)

// A target is what this library's token bucket is to reach in a scenario.
type target struct {
	scenario string
	limit    float64
	of       yardstick
}

// A yardstick is what a limit is compared with.
type yardstick int

const (
	bestPeer   yardstick = iota // this library ÷ the best peer
	figure                      // the figure itself
	aboveFloor                  // the figure less that of no limiter at all
)

var targets = []target{
	{"S1", 0.75, bestPeer},
	{"S2", 0.75, bestPeer},
	{"S2p", 0.35, bestPeer},
	{"S3", 0.55, bestPeer},
	{"S4", 0.45, bestPeer},
	{"S4h", 0.45, bestPeer},
	{"S5", 1.0, bestPeer},
	{"S6", 0.45, bestPeer},
	{"S6h", 0.45, bestPeer},
	{"S7", 0.40, bestPeer},
	{"heap-1M", 36, figure},
	{"heap-peak", 64, figure},
	{"gc", 1, figure},
	{"longest", 2, aboveFloor},
}

// allocsTarget is how many allocations a decision may make, with that of keys
// that are new. Tables that grow are spread over the keys that grew them.
const allocsTarget = 0.005

// words says what the target asks for.
func (t target) words(u unit) string {
	switch t.of {
	case bestPeer:
		return fmt.Sprintf("≤ %.2f × best peer", t.limit)
	case aboveFloor:
		return fmt.Sprintf("≤ %v %s more than no limiter", t.limit, u)
	}
	return fmt.Sprintf("≤ %v %s", t.limit, u)
}

// met reports whether entries, those of the target's scenario, meet it. Known
// is false if too few took part to tell.
func (t target) met(entries []entry) (met, known bool) {
	own, ok := first(entries, contenders.Main)
	if !ok {
		return false, false
	}
	got := own.median()
	switch t.of {
	case bestPeer:
		peer, ok := first(entries, contenders.Peer)
		return ok && got/peer.median() <= t.limit, ok
	case aboveFloor:
		floor, ok := first(entries, contenders.Floor)
		return ok && got-floor.median() <= t.limit, ok
	}
	return got <= t.limit, true
}
