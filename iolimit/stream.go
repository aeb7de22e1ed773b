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
)

const (
	// mostParts and fewestParts are the number of chunks in a limit that are at most and at
	// least as large as usefulChunk. With fewestParts, each stream in a small window leaves
	// at most this part unused.
	mostParts, fewestParts = 64, 16

	// usefulChunk is as many bytes as make the cost of the limiter small.
	usefulChunk = 4 << 10

	// largestChunk is about as much as a system call moves efficiently.
	largestChunk = 64 << 10

	// longestCall is how long a Read or Write of a chunk may take. If it takes longer, what it has
	// not moved stays spent.
	longestCall = 10 * time.Minute

	// worthwhile is the part of a chunk that must be left of the limit for the stream to
	// spend it separately.
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
		return param.InvalidIn(
			"iolimit",
			"the Bound's limiter",
			nil,
			"must not be nil; ratelimit.For(limiter, key) makes a Bound",
		)
	case ctx == nil:
		return param.InvalidIn(
			"iolimit",
			"ctx",
			nil,
			"must not be nil; context.Background() is one",
		)
	}
	return ctx.Err()
}

// chunk returns the most bytes to move next. It fails if no byte can ever be granted.
func (p *payer) chunk(ctx context.Context) (int, error) {
	if p.limit < 1 {
		if err := p.suits(ctx); err != nil {
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

// suits returns an error if bytes cannot be events of the key's algorithm. An unknown algorithm
// suits.
func (p *payer) suits(ctx context.Context) error {
	alg, err := ratelimit.Describe(p.limiter).For(ctx, p.key)
	if err != nil {
		return nil // then the limit of New decides, or the FailurePolicy
	}
	parts, ok := alg.(ratelimit.All)
	if !ok {
		parts = ratelimit.All{alg}
	}
	for _, part := range parts {
		if _, inFlight := part.(ratelimit.InFlight); inFlight {
			return param.InvalidIn(
				"iolimit",
				"the limit of the Bound, or a part of it,",
				fmt.Sprintf("%T%+v", part, part),
				"must not be an InFlight, because nobody releases bytes; to limit how many streams run at once, hold an event of another limiter for each stream",
			)
		}
	}
	return nil
}

func (p *payer) never(n int) error {
	const text = "%w: %d bytes of key %q with a limit of %d"
	return fmt.Errorf(text, ratelimit.ErrNever, n, p.key, p.limit)
}

// pay waits until some of n bytes may pass, at most a chunk, spends them, and returns how many.
// With options, it holds them, and also returns the hold.
func (p *payer) pay(
	ctx context.Context,
	n int,
	opts ...ratelimit.HoldOption,
) (held *ratelimit.Reservation, paid int, err error) {
	for paid == 0 {
		most, err := p.chunk(ctx)
		if err == nil {
			held, paid, err = p.spend(ctx, min(n, most), opts)
		}
		if err != nil {
			return nil, 0, err
		}
	}
	return held, paid, nil
}

// spend is pay for a chunk. It may return 0, to be called again with a chunk of the limit as it is
// now.
func (p *payer) spend(
	ctx context.Context,
	n int,
	opts []ratelimit.HoldOption,
) (held *ratelimit.Reservation, paid int, err error) {
	atOnce := append([]ratelimit.HoldOption{ratelimit.Within(0)}, opts...)
	held, d, _ := p.limiter.Reserve(ctx, p.key, n, atOnce...) // on an error, the policy decides
	p.limit = d.Limit
	switch {
	case held != nil && !d.Checked(): // nothing is held
		return nil, n, nil
	case held != nil:
		return held, n, nil
	case 1 <= d.Limit && d.Limit < n:
		// The limit has become lower, or a lower one decides in its place.
		return nil, 0, nil
	case d.RetryAfter == ratelimit.Never:
		return nil, 0, p.never(n)
	case d.Remaining < n && d.Remaining*worthwhile >= n:
		// The end of a window would be lost if all n went into the next one.
		n = d.Remaining
	}
	if len(opts) > 0 {
		waiting := append([]ratelimit.HoldOption{ratelimit.Waiting()}, opts...)
		held, _, err = p.limiter.Hold(patientContext{ctx}, p.key, n, waiting...)
	} else {
		err = p.limiter.WaitN(patientContext{ctx}, p.key, n)
	}
	switch {
	case err == nil:
		return held, n, nil
	case errors.Is(err, ratelimit.ErrQueueFull):
		return nil, 0, sleep(ctx, ratelimit.Describe(p.limiter).Clock, d.RetryAfter)
	case errors.Is(err, ratelimit.ErrNever):
		// The limit has become lower, as the next decision says.
		return nil, 0, nil
	}
	return nil, 0, err
}

// A patientContext ends when the context inside does, but does not tell its deadline. So a wait
// does not fail early because its turn seems to come after the deadline: the turn may come earlier.
type patientContext struct{ context.Context }

// Deadline implements [context.Context].
func (patientContext) Deadline() (time.Time, bool) { return time.Time{}, false }

// sleep returns nil after d by clk, which is the system's clock if it is nil, or the error of
// ctx if that ends first.
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
