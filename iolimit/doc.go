// Package iolimit limits the bytes per second of readers, writers and network connections,
// by any [ratelimit.Limiter]. One event is one byte:
//
//	limiter := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1 << 20), Burst: 256 << 10}))
//	n, err := io.Copy(dst, iolimit.Reader(ctx, src, ratelimit.For(limiter, userID)))
//
// Streams that share a key share its limit, chunk by chunk in the order of their arrival. So
// one limiter serves a limit per user, however many connections the user has. To combine
// limits, such as a rate and a volume per day, use [ratelimit.All].
//
// # Chunks
//
// Data passes in chunks, each of which waits until all of its bytes are granted. A chunk is a
// part of what an unused key is granted at once (Decision.Limit, the Burst of a
// [ratelimit.TokenBucket]): at most a sixty-fourth, but a sixteenth if that is less than
// 4 KiB, at most 64 KiB, and at least one byte. So a chunk is never too large for the limit,
// the flow is smooth, and streams that share a key wait for each other only briefly. The size
// follows a limit that changes (see [ratelimit.WithLimits]). Short reads and writes are
// smaller chunks.
//
// A chunk costs about a microsecond and 500 bytes of garbage. With a Burst of 1 MiB, chunks
// have 16 KiB, and a stream of 1 Gbit/s spends less than 1 % of its time in the limiter.
// With a store in Redis, each chunk is one or two calls.
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
// In any span, the bytes that a Reader delivers, or that a Writer starts to write, are
// those that the algorithm bounds. If the limit is used up all the time, they are not fewer in
// the long run. The exceptions are windows: if several streams share a
// [ratelimit.FixedWindow] or a [ratelimit.RollingWindow], up to a chunk may stay unused at
// the end of each window.
//
// # Which algorithm
//
// Use [ratelimit.TokenBucket], with a Burst of 10 to 250 milliseconds of the Rate. A
// [ratelimit.LeakyBucket] also limits the first burst; a stream that finds its queue full
// waits, and does not fail. Windows let a stream use up its limit at once, and then stop
// until the next window. A [ratelimit.SlidingLog] keeps 8 bytes in memory for each byte of the
// stream, so it is not for streams.
//
// # Errors
//
// If the store fails, the limiter's [ratelimit.FailurePolicy] decides: with FailOpen, data
// passes; with FailClosed, calls fail with the store's error, and can be repeated. If a key
// can never be granted a byte, calls fail with [ratelimit.ErrNever].
//
// [io.Copy] uses buffers of 32 KiB with these readers and writers, or the source's WriteTo. It
// does not use sendfile or splice, which cannot be limited.
package iolimit
