// Package iolimit limits the bytes per second of readers, writers and network connections,
// by any [ratelimit.Limiter]. One event is one byte:
//
//	limiter := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1 << 20), Burst: 256 << 10}))
//	n, err := io.Copy(dst, iolimit.Reader(ctx, src, ratelimit.For(limiter, userID)))
//
// Streams that share a key share its limit, chunk by chunk in the order of their arrival: they
// stand in the line of [ratelimit.Limiter.Wait], and one that ends while it waits costs the others
// nothing. So one limiter serves a limit per user, however many connections the user has. To
// combine limits, such as a rate and a volume per day, use [ratelimit.All].
//
// # Chunks
//
// Data passes in chunks, each of which waits until all of its bytes are granted. A chunk is at
// most 64 KiB, and at most a sixty-fourth of the limit: of what an unused key is granted at
// once (Decision.Limit, the Burst of a [ratelimit.TokenBucket]). With a limit below 256 KiB,
// it is about 4 KiB, and with one below 64 KiB a sixteenth of the limit, but at least a byte.
// So a chunk is never too large for the limit, the flow is smooth, and streams that share a
// key wait for each other only briefly. The size follows a limit that changes (see
// [ratelimit.WithLimits]). Short reads and writes are smaller chunks.
//
// Streams that share a key take turns, with a chunk each. So a stream whose chunks are a quarter as
// large as those of others gets a quarter of what they get. A [bufio.Reader] or [bufio.Writer] of
// 64 KiB around a stream of this package makes chunks large, however little the program reads or
// writes at once. But the chunks of a Reader are small if its source delivers little at once.
//
// A chunk costs one to two microseconds and 500 bytes of garbage, and some microseconds more
// if it must wait, for which it sets a timer. With a Burst of 1 MiB, a chunk has 16 KiB, and
// the limiter takes 70 microseconds per MiB, for which a stream of 1 Gbit/s takes 8
// milliseconds (go test -run '^$' -bench Reader ./iolimit). With a store in Redis, each chunk
// takes one or two calls, and if it is written one more, which says how much of it was.
//
// # What is charged
//
// A Reader, and the reading side of a Conn, first reads and then waits for the tokens of
// what came. So it charges exactly the bytes that were read, and none while it waits for slow
// input: idle connections take nothing from others on the key. The bytes are delivered when
// they are granted, and at most one chunk for each stream has been read but not delivered.
// (The other order, to spend tokens for a whole buffer, read, and give the rest back, lets a
// thousand idle connections hold a thousand chunks, and deliver them at once, far above the
// limit, when input arrives.)
//
// A Writer, and the writing side of a Conn, first waits for the tokens and then writes. If a
// write fails or is short, the bytes that were not written are given back, as far as
// [ratelimit.Reservation.Settle] does.
//
// In any span, the bytes that a Reader delivers, or that a Writer begins to write, are
// bounded by the algorithm. A stream that always has data gets the whole rate, and so do
// several that share a key: over the time of ten bursts, within 2 %. That holds after the time of
// the first burst. An unused [ratelimit.TokenBucket] grants its Burst in addition. If several
// share a window, they leave less than a chunk unused at its end.
//
// # Which algorithm
//
// Use [ratelimit.TokenBucket], with a Burst of 10 to 250 milliseconds of the Rate. With a
// much smaller Burst, a stream that is alone on its key loses tokens, because timers of the
// operating system fire up to a millisecond late, and much later if all processors are busy, and
// the bucket is full by then. Streams that wait behind others lose nothing in memory, as
// [ratelimit.Limiter.WaitN] says.
//
// A [ratelimit.LeakyBucket] works as well. Its queue has room for at least 15 streams, which
// take turns. If it is full, further streams wait until it has room; none fails, but their
// turns are at random.
// Windows let a stream use up its limit at once, and then stop it until the next window;
// which of several streams is first then is not defined. A [ratelimit.SlidingLog] keeps 8
// bytes in memory for each byte of the stream, so it is not suitable. With a
// [ratelimit.InFlight], also in an All, calls fail with an error that matches
// [ratelimit.ErrInvalid]: to limit how many streams run at once, Hold an event of another limiter
// while each of them runs. With [ratelimit.Unlimited], data passes in chunks of 64 KiB.
//
// # Errors
//
// If the store fails, the limiter's [ratelimit.FailurePolicy] decides: with FailOpen, data
// passes; with FailClosed, calls fail with the store's error, and can be repeated; with a
// [ratelimit.Fallback], data passes by its limit, even if that is lower. So it does by the limit of
// [ratelimit.New] if the lookup of [ratelimit.WithLimits] fails. If a key
// can never be granted a byte, calls fail with [ratelimit.ErrNever].
//
// If the limiter of a Bound is nil, that is logged with slog at once, and all calls fail with an
// error that matches [ratelimit.ErrInvalid].
//
// [io.Copy] uses buffers of 32 KiB with these readers and writers, or the source's WriteTo. It
// does not use sendfile or splice, which cannot be limited.
package iolimit
