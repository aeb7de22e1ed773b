// Package ratelimit limits how often events may happen: 10 calls a second for each user, 1,000 a
// day for each address, or a different limit for each customer.
//
// Make a limiter once,
//
//	limiter := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)}))
//
// and call it for each event:
//
//	if !limiter.Allow(userID) {
//		http.Error(w, "too many requests", http.StatusTooManyRequests)
//		return
//	}
//
// # Algorithms
//
// An [Algorithm] is a kind of limit with its parameters, as plain data:
//
//   - [TokenBucket] allows bursts of a given size, and a given rate in the long
//     run. Use it when in doubt.
//   - [LeakyBucket] with Wait or Delay smooths an uneven flow, with a bounded
//     queue.
//   - [FixedWindow] counts events per minute, hour or day of UTC, or from a
//     key's first event. It is the easiest to explain.
//   - [CalendarWindow] counts events per day, week, month, quarter or year of a
//     time zone, such as from a billing day on.
//   - [SlidingWindow] avoids the burst at the border of fixed windows, by an
//     estimate.
//   - [SlidingLog] bounds every span of time exactly, for a word per event.
//   - [RollingWindow] is a quota over a long window, recalculated every period.
//   - [WarmingUp] raises its rate slowly after idle times.
//   - [Lockout] locks a key after a number of failures, each time for longer.
//   - [InFlight] bounds how many requests run at once. Its events are released.
//   - [All] combines any of them: every part must allow.
//   - [Unlimited] and [Blocked] grant everything and nothing, for customers without a
//     limit and suspended ones.
//
// The documentation of each says what it bounds, the worst case in any span of time, and how much
// memory a key takes. Printed, an algorithm is its limit in words, such as "10/s, burst 20".
//
// # Limiters
//
// [New] binds an algorithm to a store and a clock. A [Limiter] serves any number of keys and
// goroutines: [Limiter.Allow] and [Limiter.Take] decide, [Limiter.Wait] waits, [Limiter.Hold] takes
// an estimate of a cost that is known only afterwards. [Limiter.TakeUpTo] takes as many events as
// remain. [Limiter.TakeEach] takes events of many keys, each for itself; [TakeAll] takes events of
// several keys of any limiters, of all or of none.
//
// [WithLimits] gives keys limits of their own, which may change while the service runs. Package
// httplimit limits HTTP requests, and package iolimit the bytes per second of readers, writers and
// connections. Modules of their own are grpclimit, for gRPC; connectlimit, for Connect; and rules,
// for tables of limits that administrators edit.
//
// # Observing
//
// [WithObserver] lets an [Observer] see each decision. Package observe lists the keys that were
// denied most lately, and logs denials and failures at a bounded rate. Package limitpage serves a
// page that shows what limiters do, and module otellimit makes OpenTelemetry metrics of it.
//
// # Promises
//
// These hold for every algorithm and every store. Package storetest tests all of them, except the
// last and bounds on the number of keys, which only concern the in-memory store.
//
//  1. Decisions are those of the mathematical definition. Only [WarmingUp] is
//     computed in floating point.
//  2. RetryAfter and Remaining are exact. If nobody else uses the key, the same
//     request is granted after RetryAfter, and denied one nanosecond earlier (one
//     microsecond in Redis). Remaining events are granted now, and not one more.
//  3. A denial spends nothing, except in a [SlidingLog] with CountDenied.
//  4. Decisions on a key are atomic. An [All] is spent in all parts or in none. So is a
//     [TakeAll] of keys in memory, and of keys in Redis that share a call.
//  5. A key is forgotten only when that changes no decision, or when a bound that
//     you set forces it. Keys forgotten because of a bound are counted.
//  6. Time is that of the clock given, by its monotonic readings; [WithClock] has the
//     exceptions. A clock that steps back grants nothing twice. Windows begin at multiples
//     of their length since the Unix epoch, unless they begin with the first event or are
//     those of a [CalendarWindow].
//  7. Reservations and waiters on a key are served in the order of their arrival; of several
//     processes, the first waiters of each take turns. No caller overtakes them (in a
//     [LeakyBucket]: no caller that honours Delay; if they wait for events that are held, or in
//     flight: no caller of the same process). Charge asks nobody: its events count at once.
//  8. The in-memory limiter needs no goroutine, and nothing to close.
//
// # Stores
//
// The default store keeps states in memory; see [MemoryStore]. Package redisstore keeps them in
// Redis, for limits that several processes share. [NewStore] keeps them in any [Database] that can
// compare and swap; package storetest checks it. How the parts work together is in docs/design.md.
package ratelimit
