package redisstore

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// slotOf is the slot of a name as the specification of Redis Cluster defines it.
func slotOf(name string) uint16 {
	if _, rest, ok := strings.Cut(name, "{"); ok {
		if tag, _, ok := strings.Cut(rest, "}"); ok && tag != "" {
			name = tag
		}
	}
	return checksum(0, name) % slots
}

func TestChecksum(t *testing.T) {
	assert.Equal(t, uint16(0x31c3), checksum(0, "123456789"), "the example of the specification")
	assert.Equal(t, checksum(0, "123456789"), checksum(checksum(0, "1234"), "56789"))
	for end, of := range endings() {
		require.Equal(t, uint16(end), checksum(0, string(of[:]))%slots)
	}
}

// A tombstone has the slot and the prefix of its key, and its name is that of nothing else.
func TestNamesOfTombstones(t *testing.T) {
	seen := map[string]string{}
	texts := []string{"", "a", "a:", ":a", "!", "!a", "a!", "@", "{", "}", "{}", "{a}", "a}b", "}{", "#", "#a", strings.Repeat("x", 129)}
	for _, prefix := range []string{"", "rl:", "{tag}", "{tag}{}", "}"} {
		s, err := New(nonsense(""), WithPrefix(prefix))
		require.NoError(t, err)
		for _, limiter := range texts {
			for _, st := range namers(t, s, limiter) {
				for _, key := range texts {
					name := st.name(key).text
					stone := s.tombstone(name)
					require.True(t, strings.HasPrefix(stone, prefix))
					require.Equal(t, slotOf(name), slotOf(stone), "%q %q", name, stone)
					for _, text := range []string{name, stone} {
						require.Empty(t, seen[text], "%q of %q", text, name)
						seen[text] = name
					}
				}
			}
		}
	}
	s, err := New(nonsense(""))
	require.NoError(t, err)
	assert.Equal(t, "rl:api@L_cBlpW!:key7CH", s.tombstone("rl:api@L_cBlpW:key"))
}

// Holds from before a Reset give nothing back.
func TestSettleAfterAReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, daily)
		f.delay = 2 * time.Millisecond
		s, here := f.store(t)
		_, other := f.store(t)
		hold := func() *ratelimit.Reservation {
			r, _, err := here.Hold(t.Context(), "k", 10)
			require.NoError(t, err)
			return r
		}
		old := []*ratelimit.Reservation{hold(), hold(), hold()}
		require.NoError(t, other.Reset(t.Context(), "k"))
		require.True(t, other.AllowN("k", 100))
		late := []*ratelimit.Reservation{hold(), hold()}

		before := s.Stats().Calls
		blocker := make(chan struct{})
		go func() { defer close(blocker); here.Allow("k") }()
		synctest.Wait() // what follows is one command
		done := make(chan error)
		for _, r := range append(old, late...) {
			go func() {
				_, err := r.Settle(t.Context(), 4)
				done <- err
			}()
		}
		for range 5 {
			require.NoError(t, <-done)
		}
		<-blocker
		assert.Equal(t, before+2, s.Stats().Calls)
		d, err := other.Peek(t.Context(), "k")
		require.NoError(t, err)
		assert.Equal(t, 10_000-100-1-2*4, d.Remaining)
	})
}

// A server of a cluster refuses a command with a missing key while the slot moves. It is sent
// again without the tombstone.
func TestWithoutTombstones(t *testing.T) {
	for _, code := range []string{"TRYAGAIN", "CROSSSLOT"} {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeServer(t, daily)
			conn := &parting{fakeServer: f, err: errors.New(code + " no")}
			s, err := New(conn)
			require.NoError(t, err)
			l, err := ratelimit.New(daily, ratelimit.WithStore(s), ratelimit.WithName("test"), ratelimit.WithFailurePolicy(ratelimit.FailClosed))
			require.NoError(t, err)
			r, _, err := l.Hold(t.Context(), "k", 10)
			require.NoError(t, err)
			d, err := r.Settle(t.Context(), 4)
			require.NoError(t, err)
			assert.Equal(t, 10_000-4, d.Remaining)
			require.NoError(t, l.Reset(t.Context(), "k"))
			d, err = l.Peek(t.Context(), "k")
			require.NoError(t, err)
			assert.Equal(t, 10_000, d.Remaining)
			assert.Equal(t, 1, conn.refused)
			assert.Empty(t, f.resets)
		})
	}
}

// A parting server refuses commands with two keys.
type parting struct {
	*fakeServer
	err     error
	refused int
}

func (p *parting) Do(ctx context.Context, c Command) (string, error) {
	if c.Key == 3 && c.Words[2] == "2" {
		p.refused++
		return "", p.err
	}
	return p.fakeServer.Do(ctx, c)
}

// A call that is answered because its key was reset has left its command: it belongs to its caller.
func TestVoidCallsLeaveTheirCommand(t *testing.T) {
	reset := time.Unix(1_800_000_000, 0)
	returns := func(taken time.Duration) *call {
		c := &call{done: make(chan error, 1)}
		c.req = kernel.Request{Op: kernel.OpReturn, N: 1, Taken: kernel.InstantOf(reset.Add(taken))}
		return c
	}
	void, valid := returns(-time.Second), returns(time.Second)
	q := &queue{shard: new(queueShard), next: []*call{{}}}
	q.group = &group{calls: []*call{void, valid}}
	g := q.group
	q.forget(g, kernel.InstantOf(reset)/kernel.Instant(tick))
	require.NoError(t, <-void.done)
	*void = call{} // by its caller
	assert.Equal(t, []*call{valid}, g.calls)
}
