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
// # Stores
//
// The default store keeps states in memory; see [MemoryStore]. Package redisstore keeps them in
// Redis, for limits that several processes share. Module sqlstore keeps them in PostgreSQL, MySQL,
// MariaDB or SQLite, and [NewStore] in any [Database] that can compare and swap; package storetest
// checks it. How the parts work together is in docs/design.md.
//
// # Observing
//
// [WithObserver] lets an [Observer] see each decision. Package observe lists the keys that were
// denied most lately, and logs denials and failures at a bounded rate. Package limitpage serves a
// page that shows what limiters do, and module otellimit makes OpenTelemetry metrics of it.
//
// # Promises
//
// These hold for every algorithm and every store. What of them depends on the store is tested on
// any store by package storetest. Bounds on the number of keys, and the last promise, only concern
// the in-memory store.
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
// # Waiting
//
// Waiters on a key stand in a line, one for each name and store in a process: first come, first
// served. Nothing overtakes the line: until it is through, other requests for the key, those of
// Reserve too, are denied in this process, and RetryAfter says when that is. Charge is the
// exception: its events count at once. Processes that share a store take turns: the first ones of
// their lines are served in the order in which they became the first, unless they wait for events
// that are held, or in flight. If a waiter leaves, because its context has ended, those behind it
// move up.
//
// Where a turn is not known, a waiter waits until its context ends: while events of the key are
// held ([Limiter.Hold]), behind callers that will hold theirs, with an [InFlight], and in a store
// that is not in memory behind others. There, only the turns of the first ones are known, and WaitN
// fails at once if ctx's deadline is before the last of these.
//
// In a busy process, whose goroutines and timers are late, the line keeps its rate: a turn that has
// come is taken as of the instant at which it came. How long ago that may be is bounded: by two
// milliseconds plus the most by which other turns were late within the last second, and by a tenth
// of a second. It is never before the last Settle or Cancel that gave events of the key back. In
// stores that are not in memory, turns are reserved earlier instead: by twice the time by which
// others were late, and at most 64 of them. After a pause, a process serves its waiters at the
// limit's rate, not all at once. The exception is turns that were already reserved: in memory those
// of the last two milliseconds, in other stores at most 64.
//
// A wait that need not wait costs as much as Allow. A waiter in memory costs a few hundred bytes
// besides its goroutine. In other stores, it costs one call of the store. The exception is a waiter
// behind events that are held, or in flight. Nobody tells it of what other processes give back. So
// the first waiter of each process asks the store again, after an eighth of the time that it has
// waited, but at least ten milliseconds and at most a second. Until it does, other callers may be
// faster: whoever gives events back serves the waiters of its own process first.
//
// # Reservations and holds
//
// The time of a reservation never changes: one in the middle that is cancelled leaves a gap, which
// nobody fills, so callers that may leave use Wait. Until then the key grants nothing else, except
// that a [LeakyBucket] keeps queueing events that fit, behind these. With [HoldFor] or [GiveBack],
// and always with an [InFlight], the events are held from their turn on, as those of Hold are. If
// the store fails, a reservation that the [FailurePolicy] allows is due at once and holds nothing.
//
// A reservation takes 32 bytes until its turn comes; the first one takes as much as the state
// besides. To make, settle or cancel one takes about 0.1 ms if a thousand are ahead. Of more than
// 4,096 on a key, the oldest ones cannot be cancelled any more.
//
// An open hold takes 32 to 40 bytes, with a [WarmingUp] up to 56, and 8 to 32 more for each further
// part of an [All]. Without an InFlight, a key has at most 4,096 of them: then the oldest one ends
// early, as it would by itself. Settle is a call of the store. It takes time in proportion to the
// number of open holds and reservations of the key, as the first decision does after a hold has
// ended by itself; with a [SlidingLog] or an InFlight, both and Hold also to the events in the log,
// some 40 µs for 100,000. In memory, Hold makes an allocation for the Reservation, of 80 bytes, and
// Settle none, except if a log grows; settling a Reservation of [HoldAll] allocates twice. A key
// with open holds costs as much as with a SlidingLog, and its decisions take a lock; if its state
// is one word, until it is granted events after they have ended, and otherwise until it is idle.
//
// # Debts
//
// What is charged counts now, even while reservations are ahead, which keep their turns; in a
// [WarmingUp], at the time of its next grant. Buckets pay a debt at their rate, windows and logs as
// the events leave them. A debt may exceed the limit itself: in buckets and WarmingUp, if it is
// paid before 2116; in windows and logs, if they count at most 2³¹−1 events, and mostly far more.
// Reservations that are ahead need room beside them. If there is no room, [ErrDebt] says how many
// would fit. If only the lookup of [WithLimits] fails, the events are counted, and the error is the
// lookup's. An [Unlimited] or [Blocked] limit counts nothing, also as that of New if the lookup
// fails.
package ratelimit
