package redisstore

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

// A promptServer is a fakeServer that callers can ask themselves.
type promptServer struct {
	*fakeServer
	before func() // is called before each prompt command; if not nil

	mu     sync.Mutex // protects prompt
	prompt int        // the commands of lone callers
}

func (p *promptServer) DoPromptly(
	ctx context.Context, command Command, _ time.Duration,
) Reply {
	p.mu.Lock()
	p.prompt++
	p.mu.Unlock()
	if p.before != nil {
		p.before()
	}
	return p.Do(ctx, []Command{command})[0]
}

// prompted returns how many commands lone callers have sent.
func (p *promptServer) prompted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.prompt
}

// onPrompt runs a test with a store on a promptServer which answers after 10 ms.
func onPrompt(
	t *testing.T,
	test func(t *testing.T, p *promptServer, s *Store, l ratelimit.Limiter),
	opts ...Option,
) {
	synctest.Test(t, func(t *testing.T) {
		p := &promptServer{
			fakeServer: newFakeServer(t, ratelimit.FixedWindow{Limit: 1000, Window: time.Hour}),
		}
		p.Delay = 10 * time.Millisecond
		s, l := p.storeThrough(t, p, opts...)
		test(t, p, s, l)
		settle()
		requireIdle(t, s)
	})
}

// A caller sends its command itself while nobody else does. Commands that are queued meanwhile, also
// those on the same key, are sent by a sender.
func TestLoneCaller(t *testing.T) {
	onPrompt(t, func(t *testing.T, p *promptServer, s *Store, l ratelimit.Limiter) {
		require.True(t, l.Allow("k"))
		require.NoError(t, l.Reset(t.Context(), "k"))
		assert.Equal(t, 2, p.prompted())

		var wg sync.WaitGroup
		for _, key := range []string{"k", "k", "other", "another"} {
			wg.Go(func() { assert.True(t, l.Allow(key)) })
			synctest.Wait()
		}
		wg.Wait()
		assert.Equal(t, 3, p.prompted(), "the first of four")
		used, err := l.Peek(t.Context(), "k")
		require.NoError(t, err)
		assert.Equal(t, 1000-2, used.Remaining)
		assert.Equal(t, 4, p.prompted(), "after the others have been answered")
	})
}

// While batches have more than one command, their callers call again together.
func TestCallersTogetherAreNotLone(t *testing.T) {
	onPrompt(t, func(t *testing.T, p *promptServer, s *Store, l ratelimit.Limiter) {
		takeEach(t, l, manyKeys(2))
		assert.Zero(t, p.prompted())
	})
}

// A lone caller is answered when its time is over, although it waits for the reply itself. That is an
// incident.
func TestLoneCallerOfHang(t *testing.T) {
	onPrompt(t, func(t *testing.T, p *promptServer, s *Store, l ratelimit.Limiter) {
		p.Hangs = true
		begin := time.Now()
		go func() {
			time.Sleep(20 * time.Millisecond)
			p.Set(func() { p.Hangs = false })
			assert.True(t, l.Allow("k"), "of the same key, behind a command without a reply")
		}()
		_, err := l.Take(t.Context(), "k", 1)
		require.ErrorIs(t, err, ErrTimeout)
		assert.Equal(t, s.timeout, time.Since(begin))
		assert.Equal(t, 1, p.prompted())
		assert.Equal(t, 1, incidents(s))
		synctest.Wait()
	})
}

// A lone caller whose context ends does not wait for the reply. That says nothing about the server,
// and the calls that are queued behind are sent.
func TestLoneCallerLeaves(t *testing.T) {
	const deadline = 120 * time.Millisecond // more than twice the timeout
	for what, leaves := range map[string]time.Duration{
		"canceled": 8 * time.Millisecond, "deadline": deadline,
	} {
		onPrompt(t, func(t *testing.T, p *promptServer, s *Store, l ratelimit.Limiter) {
			s.backlog = func() bool { return true } // so that the timeout passes later than that
			p.Hangs = true
			ctx, cancel := context.WithTimeout(t.Context(), deadline)
			defer cancel()
			begin := time.Now()
			var wg sync.WaitGroup
			wg.Go(func() {
				_, err := l.Take(ctx, "k", 1)
				assert.ErrorIs(t, err, ctx.Err())
				assert.Equal(t, leaves, time.Since(begin), what)
			})
			time.Sleep(7 * time.Millisecond) // the server has the command
			p.Set(func() { p.Hangs = false })
			wg.Go(func() { assert.True(t, l.Allow("k"), "of the same key, queued behind") })
			time.Sleep(leaves - 7*time.Millisecond)
			cancel()
			wg.Wait()
			assert.Equal(t, 1, p.prompted(), what)
			assert.Zero(t, incidents(s), what)
		})
	}
}

// A sender awaits the reply to a command if it may be late for the caller, or may have a lease: then
// neither the connection nor the lease is lost when the caller leaves.
func TestWhoIsNotLone(t *testing.T) {
	onPrompt(t, func(t *testing.T, p *promptServer, s *Store, l ratelimit.Limiter) {
		for left, prompt := range map[time.Duration]int{
			2*s.timeout - 1: 0, 2 * s.timeout: 1,
		} {
			before := p.prompted()
			ctx, cancel := context.WithTimeout(t.Context(), left)
			_, err := l.Take(ctx, "k", 1)
			cancel()
			require.NoError(t, err)
			assert.Equal(t, prompt, p.prompted()-before, left)
		}
	})
	onPrompt(t, func(t *testing.T, p *promptServer, s *Store, l ratelimit.Limiter) {
		require.True(t, l.Allow("k"))
		assert.Zero(t, p.prompted())
	}, WithLease(100, time.Minute))
}

// A redirected command of a lone caller is sent again by a sender: the client then follows it, and
// the caller does not wait for another server.
func TestLoneCallerIsRedirected(t *testing.T) {
	onPrompt(t, func(t *testing.T, p *promptServer, s *Store, l ratelimit.Limiter) {
		p.Fail, p.Failures = errors.New("MOVED 7 127.0.0.1:7001"), 1
		require.True(t, l.Allow("k"))
		assert.Equal(t, 1, p.prompted())
		assert.Equal(t, []int{1, 1}, p.Together)
		assert.Zero(t, incidents(s))
	})
}

// If the client of a lone caller panics, and the caller recovers, as handlers of net/http do, then
// the next caller of the key is answered, and the breaker tests the server.
func TestLoneCallerPanics(t *testing.T) {
	onPrompt(t, func(t *testing.T, p *promptServer, s *Store, l ratelimit.Limiter) {
		trip(s)
		time.Sleep(s.cooldown)
		p.before = func() { panic("a hook of the client") }
		assert.PanicsWithValue(t, "a hook of the client", func() { l.Allow("k") })
		p.before = nil
		_, err := l.Take(t.Context(), "k", 1)
		require.NoError(t, err)
		assert.Zero(t, incidents(s))
	})
}

// A lone caller that was answered by a sender, because it was not alone before, sends its next
// command itself.
func TestLoneAgain(t *testing.T) {
	onPrompt(t, func(t *testing.T, p *promptServer, s *Store, l ratelimit.Limiter) {
		go l.Allow("first")
		time.Sleep(time.Millisecond)
		require.True(t, l.Allow("second"))
		require.Equal(t, 1, p.prompted())
		for range 3 {
			require.True(t, l.Allow("second"))
		}
		assert.Equal(t, 4, p.prompted())
	})
}
