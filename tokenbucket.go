package ratelimit

// A TokenBucket holds up to Burst tokens, starts full, and gains tokens at
// Rate. n events are granted if n tokens are there, which they take.
//
// It lets a key that was idle do Burst events at once and then Rate, and in
// any span of length t at most Burst + t·Rate. It is the one to take when in
// doubt. Its state is one word, or two if an event does not take a multiple of
// half or a third of a nanosecond (7 a second), or if so many events fit into
// the bucket that it takes decades to fill.
//
// The bucket was described as a meter by J. Turner, "New directions in
// communications (or which way to the information age?)", IEEE Communications
// Magazine 24(10), 1986.
type TokenBucket struct {
	Rate   Rate   // how fast tokens arrive
	Burst  int    // the most tokens it holds; 0 means Rate.Events
	Refill Refill // whether they arrive evenly or in lumps
}

// Refill says how the tokens of a [TokenBucket] arrive.
type Refill int

const (
	// RefillContinuous lets tokens, and fractions of them, arrive evenly: at
	// 60 a minute, one each second.
	RefillContinuous Refill = iota

	// RefillInterval lets tokens arrive in lumps of Rate.Events, at whole
	// multiples of Rate.Per after the event that took the bucket from full: at
	// 60 a minute, 60 a minute after that. In a span of length t the key gets
	// at most Burst + ⌈t/Per⌉·Events.
	RefillInterval
)

func (a TokenBucket) compile(f form) (kernel, error) {
	if err := a.Rate.check("TokenBucket.Rate"); err != nil {
		return nil, err
	}
	if a.Burst < 0 {
		return nil, invalid("TokenBucket.Burst", a.Burst, "must be at least 1, or 0 for Rate.Events")
	}
	switch a.Refill {
	case RefillContinuous:
		k, err := newGCRA(a.Rate, a.Burst, f, "TokenBucket")
		return &k, err
	case RefillInterval:
		per, err := f.ticks(a.Rate.Per, "TokenBucket.Rate.Per")
		if err == nil {
			err = f.count(a.Burst, "TokenBucket.Burst")
		}
		return &lumps{burst: uint64(a.Burst), lump: uint64(a.Rate.Events), per: per}, err
	}
	return nil, invalid("TokenBucket.Refill", int(a.Refill), "must be RefillContinuous or RefillInterval")
}

// lumps is the arithmetic of a [TokenBucket] with RefillInterval. Its state
// has two words: the instant from which the lumps are counted (that of the
// event which took the bucket from full, or of a lump since), and the tokens
// missing at that instant. If none are missing, the first word means nothing.
type lumps struct {
	plain
	burst uint64 // the most tokens
	lump  uint64 // how many arrive at once
	per   uint64 // ticks between lumps
}

func (k *lumps) limit() int { return int(k.burst) }
func (k *lumps) width() int { return 2 }

// refilled returns the state at t, which is not before st's: its words, with
// the lumps that have come by then counted in.
func (k *lumps) refilled(st []uint64, t instant) (anchor instant, missing uint64) {
	anchor, missing = st[0], st[1]
	came := (t - anchor) / k.per
	if came >= ceilDiv(missing, k.lump) {
		return t, 0
	}
	return anchor + came*k.per, missing - came*k.lump
}

func ceilDiv(a, b uint64) uint64 {
	q := a / b
	if a%b != 0 {
		q++
	}
	return q
}

func (k *lumps) ready(st []uint64, now instant, n int) instant {
	now = max(now, st[0])
	anchor, missing := k.refilled(st, now)
	if missing+uint64(n) <= k.burst {
		return now
	}
	return k.lumpsAfter(anchor, ceilDiv(missing+uint64(n)-k.burst, k.lump))
}

// lumpsAfter returns the instant at which the count-th lump after anchor comes.
func (k *lumps) lumpsAfter(anchor instant, count uint64) instant {
	if count > (forever-anchor)/k.per {
		return forever
	}
	return anchor + count*k.per
}

func (k *lumps) spend(st []uint64, at instant, n int) []uint64 {
	anchor, missing := k.refilled(st, at)
	st[0], st[1] = anchor, missing+uint64(n)
	return st
}

func (k *lumps) reserve(st []uint64, _, at instant, n int, to []trace) ([]uint64, []trace) {
	st, t := chained(k, st, at, n, func(st []uint64) [2]uint64 { return [2]uint64{0, st[1]} })
	return st, append(to, t)
}

func (k *lumps) room(st []uint64, now instant) int {
	if now < st[0] {
		return 0 // a reservation is ahead
	}
	_, missing := k.refilled(st, now)
	return int(k.burst - min(missing, k.burst))
}

func (k *lumps) fresh(st []uint64) instant {
	return k.lumpsAfter(st[0], ceilDiv(st[1], k.lump))
}

func (k *lumps) giveBack(st []uint64, _, now instant, n int) []uint64 {
	if now < st[0] {
		return st // a reservation that is ahead counts on them
	}
	st[0], st[1] = k.refilled(st, now)
	st[1] -= min(st[1], uint64(n))
	return st
}

func (k *lumps) valid(st []uint64) bool { return st[0] <= maxInstant && st[1] <= k.burst }
