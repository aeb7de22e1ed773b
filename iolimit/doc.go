// Package iolimit limits the bytes per second of readers, writers and network connections,
// by any [ratelimit.Limiter]. One event is one byte:
//
//	limiter := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{
//		Rate:  ratelimit.PerSecond(1 << 20),
//		Burst: 256 << 10,
//	}))
//	n, err := io.Copy(dst, iolimit.Reader(ctx, src, ratelimit.For(limiter, userID)))
//
// A stream is a reader, a writer, or one direction of a connection. Streams that share a key share
// its limit. So a limiter with a key for each user limits each user, however many connections the
// user has. The streams take turns, with a chunk each, in the order of their arrival: they stand in
// the line of [ratelimit.Limiter.Wait]. A stream that ends while it waits costs the others nothing.
// To combine limits, such as a rate and a volume per day, use [ratelimit.All].
//
// # Chunks
//
// Data passes in chunks. A chunk waits until all of its bytes are granted. Its size depends on the
// limit: the number of bytes that an unused key is granted at once (Decision.Limit, the Burst of a
// [ratelimit.TokenBucket]).
//
//	limit           largest chunk
//	from 4 MiB on   64 KiB
//	from 256 KiB    a sixty-fourth of the limit
//	from 64 KiB     about 4 KiB
//	less            a sixteenth of the limit, but at least a byte
//
// So a chunk is never too large for the limit, the flow is smooth, and streams that share a key
// wait for each other only briefly. If the limit changes (see [ratelimit.WithLimits]), the size
// changes as well. Short reads and writes are smaller chunks.
//
// Streams that share a key take turns, with a chunk each. So a stream whose chunks are a quarter as
// large as those of the other streams gets a quarter of their bytes. A [bufio.Reader] or
// [bufio.Writer] of 64 KiB around a stream of this package makes chunks large, however little the
// program reads or writes at once. The exception is a Reader whose source delivers little at once.
//
// A chunk costs one to two microseconds and 500 bytes of garbage. A chunk that must wait sets a
// timer, and costs some microseconds more. With a Burst of 1 MiB, a chunk has 16 KiB. Then the
// limiter takes 70 microseconds per MiB (go test -run '^$' -bench Reader ./iolimit), while a stream
// of 1 Gbit/s takes 8 milliseconds for it. With a store in Redis, a chunk takes one or two calls of
// Redis. A chunk that is written takes one more, which reports how many bytes were written.
//
// # What is charged
//
// A Reader, and the reading side of a Conn, first reads bytes and then waits for their tokens. So
// it charges exactly the bytes that were read, and nothing while it waits for slow input: idle
// connections take nothing from other streams of the key. The bytes are delivered when they are
// granted. At most one chunk of each stream has been read and not delivered. (In the other order, a
// stream would spend tokens for a whole buffer, read, and give the rest back. Then a thousand idle
// connections would hold a thousand chunks, and deliver all of them at once, far above the limit,
// when input arrives.)
//
// A Writer, and the writing side of a Conn, first waits for the tokens and then writes. If a write
// fails or is short, the tokens of the bytes that were not written are given back, as far as
// [ratelimit.Reservation.Settle] gives them back.
//
// The algorithm bounds the bytes that a Reader delivers, or that a Writer begins to write, in any
// span of time. A stream that always has data gets the whole rate, and so do several streams that
// share a key: within 2 %, over the time of ten bursts, once the time of the first burst is over.
// An unused [ratelimit.TokenBucket] grants its Burst in addition. Streams that share a window leave
// less than a chunk unused at its end.
//
// # Which algorithm
//
// Use a [ratelimit.TokenBucket] whose Burst is the Rate of 10 to 250 milliseconds. With a much
// smaller Burst, a stream that is alone on its key loses tokens: timers of the operating system
// fire up to a millisecond late, and much later if all processors are busy, and by then the bucket
// is full. In memory, streams that wait behind others lose nothing, as [ratelimit.Limiter.WaitN]
// says.
//
// The other algorithms behave as follows:
//
//   - A [ratelimit.LeakyBucket] works as well. Its queue has room for at least 15 streams, which
//     take turns. While the queue is full, further streams wait until it has room. None of them
//     fails, but the order of their turns is random.
//   - Windows let a stream use up its limit at once, and then stop it until the next window. Which
//     of several streams comes first in the next window is not defined.
//   - A [ratelimit.SlidingLog] is not suitable, because it keeps 8 bytes in memory for each byte of
//     the stream.
//   - With a [ratelimit.InFlight], alone or in an All, calls fail with an error that matches
//     [ratelimit.ErrInvalid]. To limit how many streams run at once, Hold an event of another
//     limiter while a stream runs.
//   - With [ratelimit.Unlimited], data passes in chunks of 64 KiB.
//
// # Errors
//
// If the store fails, the limiter's [ratelimit.FailurePolicy] decides. With FailOpen, data passes.
// With FailClosed, calls fail with the store's error, and can be repeated. With a
// [ratelimit.Fallback], data passes at the limit of the fallback limiter, even if that limit is
// lower. If the lookup of [ratelimit.WithLimits] fails, data passes at the limit of
// [ratelimit.New].
//
// If a key can never be granted a byte, calls fail with [ratelimit.ErrNever]. If the limiter of a
// Bound is nil, all calls fail with an error that matches [ratelimit.ErrInvalid]. That mistake is
// also logged with slog when the stream is made.
//
// # Copying
//
// With these readers and writers, [io.Copy] uses buffers of 32 KiB, or the source's WriteTo. It
// does not use sendfile or splice, which cannot be limited.
package iolimit
