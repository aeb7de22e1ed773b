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

// readings returns st or, for a settlement in a continuous TokenBucket, the states of which that
// may be of. If nothing was granted since the hold, all must come back. If something was at a later
// instant and counts still, only as much as is missing. Otherwise, both are right. The bytes of a
// state end with the latest instant at which events were spent, which decides.
func (st state) readings(limit *ratelimit.Transition, c call) (all []state) {
	bucket, ok := limit.Algorithm().(ratelimit.TokenBucket)
	i := slices.IndexFunc(st.spent, func(s spent) bool { return s.hold == c.hold+1 })
	if !ok || bucket.Refill == ratelimit.RefillInterval || c.op != "settle" || i < 0 || c.n >= st.spent[i].n || st.bytes == "" {
		return []state{st}
	}
	at := st.spent[i].at
	since := st.spent[i+1:]
	latest := binary.LittleEndian.Uint64([]byte(st.bytes[len(st.bytes)-8:]))
	as := func(instant int64) state {
		st := st
		st.bytes, st.pretends = string(withLatest([]byte(st.bytes), uint64(instant))), &latest
		return st
	}
	later := slices.ContainsFunc(since, func(s spent) bool { return s.n > 0 && s.at > at })
	if !later {
		all = append(all, as(at))
	}
	if len(since) > 0 {
		all = append(all, as(at-1))
	}
	return all
}

// withLatest returns bytes with another latest instant.
func withLatest(bytes []byte, instant uint64) []byte {
	if len(bytes) < 8 {
		return bytes
	}
	return binary.LittleEndian.AppendUint64(slices.Clone(bytes[:len(bytes)-8]), instant)
}
