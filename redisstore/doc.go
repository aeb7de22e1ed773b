// Package redisstore keeps the states of limiters in Redis or Valkey, so that all
// processes of a fleet share one limit for each key.
//
// When Redis fails or does not answer in time, the limiter's [ratelimit.FailurePolicy]
// decides. The default is FailOpen: while Redis is away, everything is allowed.
//
// Modules redisstore/goredis, redisstore/rueidis and redisstore/valkey make a [Store] from the
// client that a service already has. (What this page says about the client rueidis is true of
// valkey-go, which is rueidis with other names.)
//
//	store, err := goredis.New(redis.NewClient(&redis.Options{Addr: "localhost:6379"}))
//	if err != nil {
//		log.Fatal(err)
//	}
//	limit := ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10), Burst: 20}
//	// While Redis is away, each of eight processes has an eighth of the limit.
//	alone := ratelimit.Must(ratelimit.New(ratelimit.Share(limit, 8)))
//	limiter := ratelimit.Must(ratelimit.New(limit, ratelimit.WithStore(store),
//		ratelimit.WithName("api"), ratelimit.WithFailurePolicy(ratelimit.Fallback(alone))))
//
// Every algorithm and every promise of package ratelimit holds across processes, to the
// microsecond. A decision, even on an [ratelimit.All], is one call of a script, which decides and
// spends by the clock of Redis; the clocks of the processes do not matter. The store works with
// Redis 6.2 or newer, Valkey, and clusters of either, on 64-bit machines.
//
// Redis must not evict the store's keys: leave maxmemory-policy at its default, noeviction. An
// evicted key gets its whole limit back.
//
// The page [docs/redis.md] has what operators need: the permissions of a user of Redis, the form
// and size of values, and how each fault affects a limit.
//
// # Cached denials
//
// After a denial, the process repeats it without a call until RetryAfter has passed, for at most
// one second ([WithDenialCache]), because calls by other processes can only reduce what the key may
// be granted. A caller that retries after RetryAfter is admitted, unless another caller has spent
// that capacity.
//
// A cached denial may be wrong in three ways, for up to that second. It does not notice what
// another process gives back: by a Reset, by settling a hold, by cancelling a reservation, or by
// ending a lease. Its Remaining and RetryAfter do not include what other processes have spent
// since. And it does not notice that a process with newer zone data has begun a new window of a
// [ratelimit.CalendarWindow]. The cache does not apply to a SlidingLog with CountDenied, to an
// InFlight, nor to Wait, Reserve, Charge and Settle.
//
// # Calls
//
// Calls of the same process on the same key that arrive while a command on that key is in progress
// share the next command, which decides on them in order. Commands on different keys of one server
// are sent together, as a batch: what is ready when a sender begins takes one round trip. A command
// does not wait for others in order to form a batch. But while eight batches are in progress, it
// waits until one of them returns, until a batch is full, or for a tenth of the timeout if nothing
// returns. In a cluster of rueidis, and with other clients that do not know which server has a key,
// each command is sent by itself. [ratelimit.Limiter.TakeEach] queues the calls on up to 512 keys
// at once.
//
// No command is sent twice, because one without an answer may have been executed. The exception is
// the end of a hold, which has an ID, so that its events are given back once: it is repeated until
// the server answers. So are the ends of holds whose opening got no answer, and that nobody has
// therefore. A caller whose context ends early returns at once, and its command continues.
//
// # Several keys
//
// [ratelimit.TakeAll] and [ratelimit.HoldAll] decide on several keys of one Store in one call of a
// script, whatever their limiters and algorithms are. In a cluster, and in a ring of go-redis, the
// keys must have the same {tag} in their names: all of them from [WithPrefix], or those that the
// service chooses with [WithKeyTags]. Other keys are held one after the other, and given back if
// the request is denied, and so are keys while a slot moves, or if a limit left a key's state that
// differs in more than how much it grants, or if the [Conn] has more than one server. Then other
// calls may be denied for a moment what they would have been granted, but nothing is granted beyond
// a limit.
//
// # Leases
//
// With [WithLease], a process takes up to k events of a key in advance, and grants them without a
// call. They are spent when the lease is taken, and what is not granted is given back when the
// lease ends, or on [Store.Close]. So the limit is exact in the long run. But leased events may
// happen after other processes have spent the capacity that replaced them: with n processes, the
// events in any span of time may exceed the limit by min(n·k, what the limit grants in the duration
// of a lease). The next lease is asked for when a quarter of the one before, or of its duration, is
// left. Both together have no more than k events. So at a steady demand, no caller waits.
//
// Only Take and Allow are granted from leases. A TakeUpTo of several events ends those of the key,
// because they remain for it. A LeakyBucket, a WarmingUp, an InFlight, and a SlidingLog with
// CountDenied are not leased.
//
// # When Redis is slow or gone
//
// A call without an answer after the timeout, 50 milliseconds or that of [WithTimeout], fails with
// [ErrTimeout]. After five failures in a row, a circuit breaker opens for half a second, in which
// calls fail at once with [ErrOpen]. On each failure the limiter's [ratelimit.FailurePolicy]
// decides, and the Decision is marked Degraded. When Redis is back, each process notices within a
// second. If a server says that it is a replica, or carries out nothing for another such reason,
// the client connects again, because its name may lead to another one by now.
//
// [Store.Stats] has counters for monitoring, and [Store.Check] asks Redis once, for a service that
// is to start only with Redis. [Store.Scan] lists the keys in Redis, for operators.
//
// [docs/redis.md]: https://github.com/ratelimit-go/ratelimit/blob/main/docs/redis.md
package redisstore
