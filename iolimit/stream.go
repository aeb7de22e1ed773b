package iolimit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/param"
	"github.com/ratelimit-go/ratelimit/keyhint"
)

const (
	// mostParts is the number of chunks in a large limit, and fewestParts in a small one. In
	// between, chunks have the size usefulChunk. Each stream leaves less than a chunk of a window
	// unused: at most a sixteenth of a small limit.
	mostParts, fewestParts = 64, 16

	// usefulChunk is the number of bytes from which on the limiter adds little to the cost of a
	// chunk.
	usefulChunk = 4 << 10

	// largestChunk is about as much as a system call moves efficiently.
	largestChunk = 64 << 10

	// longestCall is how long a Write of a chunk may take. If the call takes longer, the bytes that
	// it has not written stay spent.
	longestCall = 10 * time.Minute

	// worthwhile is a part of a chunk: an eighth. If the limit has at least that much left, but no
	// whole chunk, the stream spends the rest separately.
	worthwhile = 8
)

// chunkOf returns the size of a chunk for a limit, at least 1.
func chunkOf(limit int) int {
	parts := min(max(limit/usefulChunk, fewestParts), mostParts)
	return min(max(limit/parts, 1), largestChunk)
}

// A payer waits for the tokens of a stream's bytes. One goroutine at a time uses it.
type payer struct {
	limiter ratelimit.Limiter
	key     string
	limit   int // of the latest decision; 0 if it is unknown, or nothing can be granted
}

// newPayer returns the payer of a stream. A missing limiter is logged, because the program may use
// the stream much later.
func newPayer(b ratelimit.Bound) payer {
	p := payer{limiter: b.Limiter(), key: b.Key()}
	if err := p.check(context.Background()); err != nil {
		slog.Error("iolimit: calls fail", "error", err)
	}
	return p
}

// check returns an error if the stream cannot be used.
func (p *payer) check(ctx context.Context) error {
	switch {
	case param.IsNil(p.limiter):
		const must = "must not be nil; ratelimit.For(limiter, key) makes a Bound"
		return param.InvalidIn("iolimit", "the Bound's limiter", nil, must)
	case ctx == nil:
		const must = "must not be nil; context.Background() is one"
		return param.InvalidIn("iolimit", "ctx", nil, must)
	}
	return ctx.Err()
}

// chunk returns the size of the next chunk. It returns an error if no byte can ever be granted.
func (p *payer) chunk(ctx context.Context) (int, error) {
	if p.limit < 1 {
		if err := p.checkAlgorithm(ctx); err != nil {
			return 0, err
		}
		d, err := p.limiter.Peek(ctx, p.key)
		if err != nil && !d.Degraded {
			return 0, err
		}
		p.limit = d.Limit
		if p.limit < 1 {
			if err != nil {
				return 0, err
			}
			return 0, p.never(1)
		}
	}
	return chunkOf(p.limit), nil
}

// checkAlgorithm returns an error if bytes cannot be events of the key's algorithm. An unknown
// algorithm passes.
func (p *payer) checkAlgorithm(ctx context.Context) error {
	alg, err := p.limiter.Describe().AlgorithmOf(ctx, p.key)
	if err != nil {
		return nil // the limit of New or the FailurePolicy decides
	}
	parts, ok := alg.(ratelimit.All)
	if !ok {
		parts = ratelimit.All{alg}
	}
	for _, part := range parts {
		if _, inFlight := part.(ratelimit.InFlight); inFlight {
			const what = "the limit of the Bound, or a part of it,"
			const must = "must not be an InFlight, because nobody releases bytes; to limit how many " +
				"streams run at once, hold an event of another limiter for each stream"
			return param.InvalidIn("iolimit", what, part, must)
		}
	}
	return nil
}

// never returns the error for n bytes that can never be granted.
func (p *payer) never(n int) error {
	const text = "%w: %d bytes of key %s with a limit of %d"
	return fmt.Errorf(text, ratelimit.ErrNever, n, keyhint.Of(p.key), p.limit)
}

// pay waits until some of n bytes may pass, at most a chunk. It spends these bytes, and returns
// their number. If holds is set, pay holds the bytes, and also returns the hold.
func (p *payer) pay(
	ctx context.Context,
	n int,
	holds bool,
) (held *ratelimit.Reservation, paid int, err error) {
	for paid == 0 {
		most, err := p.chunk(ctx)
		if err == nil {
			held, paid, err = p.spend(ctx, min(n, most), holds)
		}
		if err != nil {
			return nil, 0, err
		}
	}
	return held, paid, nil
}

// spend waits for the n bytes of a chunk, and spends or holds them as pay does. If the limit has
// changed, or has refused the bytes for a while that is over, spend returns 0: pay then calls it
// again, with a chunk of the present limit.
func (p *payer) spend(
	ctx context.Context,
	n int,
	holds bool,
) (held *ratelimit.Reservation, paid int, err error) {
	atOnce := []ratelimit.ReserveOption{ratelimit.Within(0)}
	if holds {
		atOnce = append(atOnce, ratelimit.HoldFor(longestCall))
	}
	held, d, _ := p.limiter.Reserve(ctx, p.key, n, atOnce...) // on an error, the policy decides
	p.limit = d.Limit
	switch {
	case held != nil && !d.Checked(): // nothing is held
		return nil, n, nil
	case held != nil:
		return held, n, nil
	case 1 <= d.Limit && d.Limit < n:
		// The limit has become lower, or a lower limit decides in its place.
		return nil, 0, nil
	case d.RetryAfter == ratelimit.Never:
		return nil, 0, p.never(n)
	case d.Remaining < n && d.Remaining*worthwhile >= n:
		// The end of a window would be lost if all n went into the next one.
		n = d.Remaining
	}
	patient := patientContext{ctx}
	if holds {
		end := ratelimit.HoldFor(longestCall)
		held, d, err = p.limiter.Hold(patient, p.key, n, ratelimit.Waiting(), end)
	} else {
		err = p.limiter.WaitN(patient, p.key, n)
	}
	isGranted := err == nil && (!holds || d.Allowed)
	switch {
	case isGranted:
		return held, n, nil
	case err == nil, errors.Is(err, ratelimit.ErrQueueFull):
		// The queue is full, or a limiter that New has not made refuses without an error.
		return nil, 0, sleep(ctx, p.limiter.Describe().Clock, d.RetryAfter)
	case errors.Is(err, ratelimit.ErrNever):
		// The limit has become lower, as the next decision says.
		return nil, 0, nil
	}
	return nil, 0, err
}

// A patientContext ends with the context inside, but has no deadline. So a wait does not fail
// early because its turn seems to come after the deadline: the turn may come earlier.
type patientContext struct{ context.Context }

// Deadline implements [context.Context].
func (patientContext) Deadline() (time.Time, bool) { return time.Time{}, false }

// sleep returns nil after d by clk. If ctx ends before, sleep returns the error of ctx. If clk is
// nil, the system's clock is used.
func sleep(ctx context.Context, clk clock.Clock, d time.Duration) error {
	if clk == nil {
		clk = clock.New()
	}
	timer := clk.Timer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
