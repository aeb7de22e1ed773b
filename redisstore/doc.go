// Package redisstore keeps the states of limiters in Redis or Valkey, so that all
// processes of a fleet share one limit for each key. Modules redisstore/goredis and
// redisstore/rueidis make a [Store] of the client that a service has already:
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
// Every algorithm and every promise of package ratelimit holds across processes,
// to the microsecond: a decision, also on an [ratelimit.All], is one call of a script
// on one key, which decides and spends, by the clock of Redis; the clocks of the
// processes do not matter. (To cancel a reservation, and to decide on a key whose limit
// has changed since, takes two.) Redis 6.2 and newer, Valkey, and their clusters will do,
// on a 64-bit machine.
//
// # What is in Redis
//
// A key of a limiter is a key in Redis: the prefix, the limiter's name, a hash of
// that and of its algorithm, and the key, or its SHA-256 if it is longer than 128
// bytes. So limiters share a key's state if their names and their parameters are
// the same. To change parameters and keep what is used, see [ratelimit.WithLimits];
// each value is then preceded by its limit, some 80 bytes. The value is 16 bytes for
// a fixed window, 24 for a bucket or [ratelimit.WarmingUp], 8 and 4 for each segment
// or period (and one more segment) of a [ratelimit.SlidingWindow] or
// [ratelimit.RollingWindow], which may have 4,096 of them, 24 and 8 for each event in a [ratelimit.SlidingLog] (16
// for several in one microsecond), and what its parts take together for an All. A
// decision reads all of it, and a grant writes all of it again. Redis forgets a key,
// to the millisecond, once it is as good as new; nothing is stored for a denial, but
// by a SlidingLog with CountDenied.
//
// Redis must not evict keys of its own accord (maxmemory-policy noeviction is the
// default): who is evicted has its whole limit again.
//
// # Denials that need no asking
//
// After a denial the process knows the state of the key, and while nothing is given
// back others can only make it worse. So until RetryAfter it repeats the denial by
// itself, with RetryAfter and Remaining counted on, for at most a second
// ([WithDenialCache]). It allows for the time that the answer was on its way and for
// clocks that drift by a thousandth, in favour of the caller: who comes when it was
// told to is let in. This is so for every algorithm but a SlidingLog with
// CountDenied, which wants to know of each denial, and for requests that Wait or
// Reserve make. What it may be wrong about, for that second: a Reset or a
// cancellation by another process is noticed late, and what others have taken since
// is not told in Remaining and RetryAfter. A key that is hammered costs Redis a call
// for each time that its limit lets an event through, or one a second.
//
// # Calls that travel together
//
// A call on a key is sent at once. Calls of this process on the same key that come
// while it is under way are sent together when it is back, as one command that decides
// each in its turn. So a process has one command for a key under way at a time. While
// any are, they have a goroutine each, and up to 64 goroutines wait for more. Commands on different keys do not wait for each other;
// whether they share a round trip is up to the client. rueidis always pipelines them.
// go-redis uses a connection of its pool for each: if more keys than it has connections
// are asked for at once, calls wait for a connection, unless PoolSize is larger or the
// store is given its AutoPipeline.
//
// # Leases
//
// With [WithLease] a process takes up to k events of a key in advance, if the key was
// asked for as many lately (and for eight at least) and has room for eight times as
// many, and hands them out without asking; near the limit it leases nothing. What is left when the lease ends
// it gives back, and [Store.Close] does so for all. Events that were taken in advance
// count at once, so that in the long run the limit is exact; but they may happen
// when others have used up what came back meanwhile. So with n processes, a span of
// time may see min(n·k, what the limit grants in the time of a lease) more than the
// limit. Decisions on leased events tell the Remaining of when the lease was taken.
// A LeakyBucket, WarmingUp, and a SlidingLog with CountDenied are not leased. If
// another process resets a key, what this one has taken of it before counts for
// nothing, and may be given back all the same: up to 2·k events more for each process.
//
// # When Redis is slow or gone
//
// A call that has not been answered after a timeout, of 50 milliseconds unless
// [WithTimeout] says otherwise, is an [ErrTimeout]; what cannot be asked at all is the
// client's error. Time in which this process does not run does not count, and while its
// goroutines wait for a processor time counts a quarter, because answers wait, too. After
// five commands in a row that failed, whoever waited for them, the circuit breaker opens
// for a second, in which nothing is asked and nobody waits ([ErrOpen]); then one command
// tries again. Each time the limiter's [ratelimit.FailurePolicy] decides, and the Decision
// says that it is Degraded: FailOpen (the default), FailClosed, or Fallback to a
// limiter in memory, with this process's [ratelimit.Share] of the limit perhaps.
// [Store.Stats] counts. Nothing is sent twice: what was not answered may have been
// done. A caller whose own context ends early is answered by the policy as well; its
// command goes on, and counts for the breaker by what comes of it.
//
// What each fault does to a limit, besides what the policy lets through while it
// lasts:
//
//   - No answer in time, or the connection is cut: the events may be spent all the
//     same, once for each request that failed.
//   - Redis crashes and is empty afterwards: each key may get its limit again. With
//     appendonly it loses what Redis says that it may lose.
//   - The primary is lost and a replica takes over: what it had granted and not yet
//     told the replica may be granted again, that is, what is granted in the time
//     that replication is behind. If the new primary's clock is behind, keys wait
//     for as much longer; if it is ahead, for as much less, once.
//   - A slot moves to another node, or SCRIPT FLUSH: nothing.
//   - A replica that is asked to write, or no memory left: nothing is spent. Denials
//     and Peek are still answered when memory is out, for the breaker does not count
//     that.
//   - A node of a cluster hangs or is gone: its keys are as without Redis, the others
//     are served. With go-redis each node has a breaker of its own. rueidis does not
//     tell nodes, so there is one breaker, which stays closed as long as other nodes
//     answer: each request on a key of that node takes the timeout.
//   - Redis is back: processes find out one after the other, within a second, and
//     until all have, those that have not decide by their policy.
//
// A client may refuse to be made while Redis is away (rueidis does, go-redis does
// not): then a service that must start all the same tries again later, and uses its
// fallback until then.
package redisstore
