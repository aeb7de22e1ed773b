package lincheck

import (
	"encoding/binary"
	"slices"

	"github.com/ratelimit-go/ratelimit"
)

// A spent is what was granted to, or charged by, a call in a sequential limiter.
type spent struct {
	at   int64
	n    int // events that count still
	hold int // if they are held: the number of the call, from 1
}

// spend returns all with what c has spent at a time or, if it settles a hold, with what is left.
func spend(all []spent, c call, now int64, output ratelimit.Decision) []spent {
	switch c.op {
	case "hold", "take", "allow", "up to":
		if output.Allowed {
			s := spent{at: now, n: c.n}
			if c.op == "hold" {
				s.hold = c.hold + 1
			}
			return append(slices.Clip(all), s)
		}
	case "charge":
		return append(slices.Clip(all), spent{at: now, n: c.n})
	case "settle":
		i := slices.IndexFunc(all, func(s spent) bool { return s.hold == c.hold+1 })
		if i < 0 {
			return all
		}
		more := c.n - all[i].n
		all = slices.Clone(all)
		if more <= 0 {
			all[i].n = c.n
		} else {
			all = append(all, spent{at: now, n: more})
		}
	}
	return all
}

// A reading is the state of a key as a call may have read it.
type reading struct {
	bytes  string
	latest *uint64 // the latest instant that the state really has, if it is another one
}

// left returns the state after a call that leaves bytes.
func (r reading) left(bytes []byte) string {
	if r.latest != nil {
		bytes = withLatest(bytes, *r.latest)
	}
	return string(bytes)
}

// readings returns the state or, for a settlement in a continuous TokenBucket, the states of which
// that may be. If nothing was granted since the hold, all must come back. If something was at a
// later instant and counts still, only as much as is missing. Otherwise, both are right. The bytes
// of a state end with the latest instant at which events were spent, which decides.
func readings(limit *ratelimit.Transition, bytes string, all []spent, c call) (possible []reading) {
	bucket, ok := limit.Algorithm().(ratelimit.TokenBucket)
	i := slices.IndexFunc(all, func(s spent) bool { return s.hold == c.hold+1 })
	if !ok || bucket.Refill == ratelimit.RefillInterval || c.op != "settle" || i < 0 || c.n >= all[i].n || bytes == "" {
		return []reading{{bytes: bytes}}
	}
	at, since := all[i].at, all[i+1:]
	latest := binary.LittleEndian.Uint64([]byte(bytes[len(bytes)-8:]))
	as := func(instant int64) reading {
		return reading{string(withLatest([]byte(bytes), uint64(instant))), &latest}
	}
	later := slices.ContainsFunc(since, func(s spent) bool { return s.n > 0 && s.at > at })
	if !later {
		possible = append(possible, as(at))
	}
	if len(since) > 0 {
		possible = append(possible, as(at-1))
	}
	return possible
}

// withLatest returns bytes with another latest instant.
func withLatest(bytes []byte, instant uint64) []byte {
	if len(bytes) < 8 {
		return bytes
	}
	return binary.LittleEndian.AppendUint64(slices.Clone(bytes[:len(bytes)-8]), instant)
}
