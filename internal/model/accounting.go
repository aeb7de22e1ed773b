package model

import "github.com/ratelimit-go/ratelimit"

// Charge spends n events whether or not they may happen: now, or at the time of the last
// reservation. A blocked part blocks all of that, too.
func (k *Key) Charge(now int64, n int) ratelimit.Decision {
	at := k.reach(now)
	for _, p := range k.parts {
		k.chargePart(p, at, n)
	}
	return k.Peek(now)
}

// chargePart charges n events to a part: now, or at the time of the last reservation.
func (k *Key) chargePart(p part, now instant, n int) {
	if n > 0 && k.Limit() > 0 {
		p.charge(k.whole(p.earliest(max(now, k.frontier))), n)
	}
}
