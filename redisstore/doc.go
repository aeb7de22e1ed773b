// Package redisstore keeps the states of limiters in Redis or Valkey, so that all
// processes of a fleet share one limit for each key.
//
// When Redis fails or does not answer in time, the limiter's [ratelimit.FailurePolicy]
// decides. The default is FailOpen: while Redis is away, everything is allowed.
//
// Modules redisstore/goredis and redisstore/rueidis make a [Store] from the client that
// a service already has:
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
// microsecond. A decision, even on an [ratelimit.All], is one call of a script on one
// key, or on several with [ratelimit.TakeAll]. The script decides and spends by the clock of
// Redis; the clocks of the processes do not matter. Hold, TakeUpTo, Charge, Settle and Release
// are one call each as well, and so are cancelling a reservation and returning a lease; those of
// one process that happen together on a key share a call. The store works with Redis 6.2 or newer, Valkey, and clusters of
// either, on 64-bit machines.
//
// # What is stored in Redis
//
// Each key of a limiter is one key in Redis, with a name such as rl:api@t3:192.0.2.1.
// It consists of the prefix, the limiter's name, a letter for the kind of the limit (one for each
// part of an All), the length of the limiter's name, and the key, or the key's SHA-256 if it is
// longer than 128 bytes. The characters @, { and % in the limiter's name are written as in URLs.
// So limiters share the state of a key if they have the same name and a limit of the same kind.
// The value says which limit left it. So parameters may change with a restart, and usage is kept:
// see below.
//
// A value begins with its limit, which takes 10 to 20 bytes, or that for each part of an All. What
// follows depends on the algorithm:
//
//   - TokenBucket and LeakyBucket: usually the value is only a decimal number, which takes no memory
//     besides the 16 bytes that Redis needs for any value. It is the limit and 24 bytes instead in a
//     TokenBucket whose latest grant was a reservation, a LeakyBucket with reservations, a part of an
//     All, and a limiter with WithLimits, and if the time per event is not a whole number of
//     microseconds with up to three digits before its zeros, as at 30 a second (but not at 10 or 100 a
//     second, or 1,000 a day).
//   - TokenBucket with RefillInterval, and FixedWindow: 16 bytes.
//   - WarmingUp: 24 bytes.
//   - RollingWindow: 16 bytes (8 with one or two periods), and 4 for each period (8 if the
//     quota is 2³² or more). There may be up to 4,096 periods.
//   - SlidingWindow: 16 bytes (8 with one segment), and 4 for each segment and for one more
//     (8 if the limit is 2³² or more). There may be up to 4,096 segments.
//   - SlidingLog, InFlight: 24 bytes, and 8 for each event, or 16 for all events in the same
//     microsecond.
//   - All: the sum of its parts, and 8 bytes for each SlidingLog or InFlight.
//
// The name of a key is 7 bytes longer than the limiter's name and the key. If these have 23 bytes
// together, a TokenBucket takes 133 bytes of memory per key in Redis 7.0, of which 85 are the
// entries of its tables. Each further 8 bytes of names or values take 8.
//
// A decision reads the whole value, and a grant writes the whole value. A denial writes nothing,
// except in a SlidingLog with CountDenied, if it replaces a value that cannot be read, and once
// after the rate of a bucket has changed, or a window to a longer one. Redis deletes a key, to the millisecond, once its
// state equals that of a new key.
//
// Redis must not evict these keys: leave maxmemory-policy at its default, noeviction. An
// evicted key gets its whole limit back.
//
// # Cached denials
//
// After a denial, the process knows the state of the key. Until something is given back,
// calls by other processes can only reduce what the key may be granted. So the process
// repeats the denial without a call until RetryAfter has passed, for at most one second
// ([WithDenialCache]), and updates RetryAfter and Remaining as time passes. While requests
// on an exhausted key continue, the process calls Redis when an event may be granted again,
// and at least once a second.
//
// The process knows the clock of Redis only within the round trip of its last call, and
// clocks may drift apart by 0.1 %. Where this leaves a doubt, it calls Redis. So a caller
// that retries after RetryAfter is admitted, unless another caller has spent that capacity.
//
// A cached denial may be wrong in two ways, for up to that second. It does not notice what
// another process gives back: by a Reset, by settling a hold, by cancelling a reservation, or
// by returning the rest of a lease. And its Remaining and RetryAfter do not include what other
// processes have spent since.
//
// RetryAfter counts from the reading of the server's clock, so a caller that retries after
// it arrives a round trip later than the capacity does. Limits that store capacity lose
// nothing by that. A TokenBucket with a Burst of 1 and a WarmingUp lose it for each event:
// at 100 events a second, saturated by such callers in several processes, 99 % of the rate
// is used with a round trip of 0.1 ms, 91 % with 1 ms, and 71 % with 4 ms, and less by as
// much as the callers' timers are late. RetryAfter cannot be shorter, because a caller that
// retries after it must be admitted even if the next request travels faster. Wait and
// Reserve take their turns ahead of time, and use all of the rate; so does Take with a Burst
// of 2.
//
// The cache does not apply to a SlidingLog with CountDenied, which must record each
// denial, to an InFlight, whose events may be released at any moment, nor to Wait, Reserve,
// Charge and Settle.
//
// # Holds
//
// An open hold is a part of the key's value: in a TokenBucket 40 bytes, which are gone when it is settled,
// or has ended by itself. (Redis may allocate twice as much while holds are added.) The value stays until
// then. Hold, Settle, Release and Extend are one call each. If the key was reset since, or Redis evicted
// it, the hold is gone as well, and gives nothing back. A Settle takes time in proportion to the open
// holds of the key: with 1,000 of them, up to a millisecond of the server. Other requests hardly notice
// them. A Cancel, and the return of a lease, on a key with open holds takes
// more calls: the process computes the new value, and a script replaces the old one.
//
// To take back what was reserved or leased, and is no hold, the script must know whether the key was
// reset since. For that, a Reset leaves a second key in Redis, which expires when the state that was
// deleted would have expired. Its name has ! after the length of the limiter's name, and three more
// characters at the end, so that it has the key's slot in a cluster. That is not noticed in three cases:
// while the key's slot moves to another node of a cluster, until the clock of a primary that was behind its
// predecessor has caught up, and with WithLimiterClock.
//
// A Settle without an answer is not repeated, because it may have been executed. If it was not,
// the held events stay spent, and Stats counts those to give back as Lost. Those of an InFlight
// then stay in flight until the hold ends by itself.
//
// The Timeout is measured by the clock of Redis. A Wait for events in flight that is blocked in one
// process asks Redis again when the same limiter releases events of the key, when a request for
// the key is made to that limiter at least 10 ms after the Wait has asked, and after RetryAfter.
// It does not notice at once that another process has released events.
//
// The most events that a key can be charged with depends on its algorithm: counts are at most
// 2⁵¹ (2³²−1 in each slot of a SlidingWindow or RollingWindow whose limit is below 2³²), and a debt
// must be paid before 2116.
//
// # Coalesced calls
//
// A call on a key is sent at once. Calls of the same process on the same key that arrive
// while a command is in progress are sent together when it completes, as one command
// that decides them in order. So a process has at most one command in progress for each
// key. Each command in progress uses one goroutine, and up to 64 goroutines are kept for
// reuse until no command is in progress.
//
// Commands on different keys do not wait for each other. Whether they share a round trip
// depends on the client. rueidis always pipelines them. go-redis uses one connection of
// its pool for each command. If there are more commands than connections, the rest are
// pipelined, except in a cluster or a ring, where calls wait for a connection. In that case raise
// PoolSize.
//
// [ratelimit.TakeEach] sends the commands of up to 512 keys at once, and waits for them
// together. If the Conn is a [Pipeline], they take one round trip for each server, and those
// on keys that have moved to another server take another one; with rueidis and a cluster, the
// client decides.
//
// # Several keys
//
// [ratelimit.TakeAll] and [ratelimit.HoldAll] decide on several keys of one Store in one call of a
// script, whatever their limiters and algorithms are: no process ever sees the events spent in
// some keys and not in others. Settling a HoldAll is one call for each key.
//
// In a cluster, and in a ring of go-redis, the keys must have the same {tag} in their names, which
// puts them into one slot. Either all keys of the Store have it, from [WithPrefix], or the
// service chooses it in each key, with [WithKeyTags]: for example {acme}:alice for a user and
// {acme} for her organisation. A key with another tag or none, such as one for the whole service,
// is held before or after the others, and given back if the request is denied.
//
// The keys are also held one after the other if a key's state was left by another limit (see
// below) or cannot be read, for one call; if several limiters share a key; while a slot moves
// between nodes of a cluster; and with a [Conn] that does not say that it has one server
// ([Single]). More than 1,024 keys are held by several calls, each of at most 1,024 keys. Then
// other calls may be denied for a moment what they would have been granted, but nothing is granted
// beyond a limit.
//
// If a key is known to refuse without a call (see above), the request is denied. As with Hold,
// nothing is granted from a key's lease. If the call fails, the FailurePolicy of each limiter
// decides.
//
// With two keys, the script takes about twice as much of the server's time as that of a Take.
//
// # Limits that change
//
// A process may find a value that another limit left: with [ratelimit.WithLimits], or while a new
// version of the service is deployed. What the key has spent counts, as [ratelimit.WithLimits]
// describes, and no call waits for processes to agree.
//
// If the two limits differ only in how much they grant, such as in the Limit of a window or the
// Burst of a bucket, a decision stays one call, after one more for each process that meets the
// other limit for the first time in ten seconds. Otherwise, while both are asked, each grant is two
// calls: the process computes the next value, and a script replaces the one that it was computed
// from. If another process was faster, it is computed again: for up to 16 times the timeout of
// [WithTimeout], because Redis answers.
//
// With WithLimits, if the kind of a key's algorithm changes, the key starts afresh, and does so again
// each time that a process with the other kind uses it. To change the kind of a limit while
// processes run, change the limiter's name as well.
//
// # Leases
//
// With [WithLease], a process takes up to k events of a key in advance, and grants them
// without a call. It takes no more than the process has requested lately, and no more
// than an eighth of what remains, and takes no lease of fewer than eight events. When a
// lease ends, or on [Store.Close], the process gives back the events it has not granted.
//
// Leased events are spent when the lease is taken, and what is not granted is given back,
// so the limit is exact in the long run. But leased events may happen after other processes
// have already spent the capacity that replaced them. With n processes, the events in any
// span of time may exceed the limit by min(n·k, what the limit grants in the duration of a
// lease).
// The Remaining of a leased decision does not include what other processes have spent
// since the lease was taken.
//
// Each leased event is granted, given back, or counted in Stats.Lost: if Redis does not
// answer while a lease is taken or given back, or if a reservation on the key counts on its
// events at that time, they may stay spent. A Reset drops the leases that this process has
// on the key. If another process resets a key, this process may still grant the events that it
// has leased: up to k for each process. It does not give back events that it leased before.
//
// Only Take and Allow are granted from leases. A Charge, and a Settle for more events than were
// held, give back the lease that their process has on the key, so that nothing is granted from
// it while there is a debt. Other processes may grant what they have leased before the charge.
//
// If the limit of a key changes (see [ratelimit.WithLimits]), the next request gives back
// the lease. While callers of a process disagree about the limit of a key, nothing is leased.
//
// A LeakyBucket, a WarmingUp, an InFlight, and a SlidingLog with CountDenied are not leased.
//
// # When Redis is slow or gone
//
// A call without an answer after the timeout fails with [ErrTimeout]. The timeout is 50
// milliseconds, or that of [WithTimeout]. Time in which this process does not run does
// not count. While goroutines of this process wait for a processor, time counts a
// quarter, because the answer may be waiting to be read, and a sixteenth while the server
// answers other commands: it works, and this process is behind. If a command cannot be sent, the
// error is the client's, such as that of a refused connection or an unknown host. (go-redis
// tries to connect for longer than 50 milliseconds. The error after the timeout is then that of
// its latest attempt.)
//
// After five failures in a row, the circuit breaker opens for half a second. While it is open,
// calls fail at once with [ErrOpen]; then one command is sent to test the server, and after 50
// milliseconds another one if the client fails at once, because its error may be older. Commands
// that were in progress at the same time count as one failure, because one lost connection
// or one stall of the server fails all of them. So when a server stops answering, the
// breaker opens after five timeouts.
//
// On each failure the limiter's [ratelimit.FailurePolicy] decides, and the Decision is
// marked Degraded. The policies are FailOpen (the default), FailClosed, and Fallback to
// a limiter in memory, for example with this process's [ratelimit.Share] of the limit.
// The limiter logs that it decides, at most one line in ten seconds. A cancellation that
// fails is not repeated, nor is the return of a lease: its events stay spent, unless only the
// answer was lost. Stats counts them as Lost.
//
// No command is sent twice, because one without an answer may have been executed. A
// caller whose context ends early returns at once. Its command continues, and the breaker
// counts the command's own outcome.
//
// Each fault affects a limit as follows, besides what the policy allows while the fault
// lasts:
//
//   - No answer in time, or a lost connection: the events of each failed request may
//     have been spent, once.
//   - Redis crashes and comes back empty: each key may get its limit again. With
//     appendonly, Redis loses what its persistence settings allow it to lose.
//   - The primary is lost and a replica takes over: grants that had not reached the
//     replica may be granted again, which is what the limit grants in the replication
//     lag. If the new primary's clock is behind by d, each key waits up to d longer, once.
//     If it is ahead by d, each key waits up to d less, once.
//   - A slot moves to another node, or SCRIPT FLUSH: no effect, except on reservations of keys that
//     are reset meanwhile (see Holds).
//   - A write to a replica, or no memory left: nothing is spent. When memory is out,
//     denials and Peek are still answered, because the breaker does not count that error
//     as a failure.
//   - A node of a cluster hangs or is gone: the FailurePolicy decides for its keys, and
//     other keys are not affected. With go-redis, each node has its own breaker. rueidis does not
//     report which node a key is on, so all nodes share one breaker, which stays closed
//     while other nodes answer: each request on a key of the failed node waits for the
//     timeout.
//   - Redis is back: each process notices within a second. Until then, its policy
//     decides.
//
// A client may fail to connect while Redis is away: rueidis.NewClient returns an error,
// and redis.NewClient does not. A service that must start anyway can use its fallback
// and try again later.
//
// # Operating
//
// [Store.Stats] has counters for monitoring: failures by kind, the latency of commands, and
// the state of each circuit breaker; and, of each server that fails, since when and why.
// [Store.Check] asks Redis once, for a service that is to start only with Redis. The limiter logs
// when its policy decides; see [ratelimit.WithFailureLog].
//
// The store needs no more permissions than those of this user. The pattern is the prefix
// of [WithPrefix], followed by *.
//
//	ACL SETUSER limits on >password ~rl:* +evalsha +eval +get +getrange +setrange +pexpire +psetex +pttl +del +time
//
// rueidis also needs +client|tracking, unless its option DisableCache is set. With a cluster,
// go-redis also needs +cluster|slots and +command (without +command it works, but asks for
// it before each command), and rueidis +cluster|slots or, from version 8 of the server on,
// +cluster|shards. The clients may send PING and CLIENT SETINFO as well; if the user lacks
// these permissions, that shows in ACL LOG and does no harm. A sentinel has users of its own.
//
// The store was tested with Redis 7.0 and Valkey 8.0, also with TLS. twemproxy 0.5 does not
// work: it closes the connection on HELLO and CLIENT, which both clients send when they
// connect. The Redis proxy of Envoy has not been tried. Any proxy must support
// EVALSHA, EVAL and DEL, and send a key's commands to the same server each time, whether or not
// they have a second key. If it has several servers, wrap the Conn of goredis or rueidis in one
// with only the method Do, because TakeAll would otherwise send keys of several servers in one
// command.
package redisstore
