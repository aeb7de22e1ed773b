// Package ratelimit limits how often things may happen: "each user 10 calls a
// second", "each address 1,000 a day", "this table of partners so much an hour".
//
//	limiter := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)}))
//	if !limiter.Allow(userID) {
//		http.Error(w, "too many requests", http.StatusTooManyRequests)
//		return
//	}
//
// # Algorithms
//
// An [Algorithm] is a kind of limit with its parameters, as plain data:
//
//   - [TokenBucket] allows bursts up to a size, and a rate in the long run. Take
//     it when in doubt.
//   - [LeakyBucket] with Wait or Delay makes an uneven flow even, with a bounded
//     queue.
//   - [FixedWindow] counts per minute, hour or day of the clock, or from a
//     key's first event. It is the easiest to explain.
//   - [SlidingWindow] does without the burst at the border of fixed windows, for
//     a few words of memory.
//   - [SlidingLog] bounds every span of time exactly, for a word per event.
//   - [RollingWindow] is a quota over a long window, recalculated every period.
//   - [WarmingUp] raises its rate slowly after idle times.
//   - [All] combines any of them: every part must allow.
//
// Each one's documentation says what it bounds, what the worst case is in any
// span of time, and what a key costs.
//
// # Limiters
//
// [New] binds an algorithm to a store and a clock. A [Limiter] answers for any
// number of keys, from any number of goroutines: [Limiter.Allow] says yes or no,
// [Limiter.Take] tells all there is to know in a [Decision], [Limiter.Wait]
// waits, [Limiter.Reserve] says when, [Limiter.Peek] looks without spending.
//
// [WithLimits] gives keys limits of their own, which may change while the service
// runs. Package httplimit puts a limiter in front of HTTP handlers; package rules, a
// module of its own, has tables of limits that administrators edit.
//
// # Promises
//
// These hold for every algorithm and every store; package storetest tests them
// all but the last, which is the in-memory store's.
//
//  1. Decisions are those of the mathematical definition. Only [WarmingUp] is
//     computed in floating point.
//  2. RetryAfter is true: one nanosecond (a microsecond, in Redis) earlier the same request is still
//     denied, at that instant it is granted, if nobody else took it. Remaining
//     is true: so many are granted now, and not one more.
//  3. A denial spends nothing, but for [SlidingLog] with CountDenied.
//  4. Decisions on a key are atomic. An [All] is spent in all parts or in none.
//  5. A key is forgotten only when nobody can tell, or when a bound that you
//     set forces it, and then it is counted.
//  6. Time is that of the clock given, through its monotonic side. A clock that
//     steps back grants nothing twice. Windows begin at multiples of their
//     length since the Unix epoch, unless they begin with the first event.
//  7. Reservations and waiters on a key are served in the order in which they
//     came, and nobody gets ahead of them; in a [LeakyBucket], nobody who
//     honours Delay.
//  8. The in-memory limiter needs no goroutine, and nothing to close.
//
// # Stores
//
// The default store keeps states in memory; see [MemoryStore]. Package redisstore keeps
// them in Redis, for limits that processes share. [NewCASStore] keeps them in any
// database that can compare and swap. For what a [Store] of your own must do, see
// there; package storetest checks it.
package ratelimit
