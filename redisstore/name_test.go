package redisstore

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/fakes"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/limit"
)

// A later version must find the same names. A change here would give every key its whole
// limit back on a deploy.
func TestNamesArePinned(t *testing.T) {
	s, err := New(nonsense{})
	require.NoError(t, err)
	bucket := ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)}
	for _, tt := range []struct {
		want string
		alg  ratelimit.Algorithm
	}{
		{"t", bucket},
		{"t", ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10), Burst: 20}},
		{"i", ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10), Refill: ratelimit.RefillInterval}},
		{"l", ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(10), Capacity: 5}},
		{"f", ratelimit.FixedWindow{Limit: 10, Window: time.Minute}},
		{"f", ratelimit.FixedWindow{Limit: 10, Window: time.Minute, Start: ratelimit.StartOnFirstEvent}},
		{"s", ratelimit.SlidingWindow{Limit: 10, Window: time.Minute, Segments: 6}},
		{"g", ratelimit.SlidingLog{Limit: 10, Window: time.Minute}},
		{"g", ratelimit.SlidingLog{Limit: 10, Window: time.Minute, CountDenied: true}},
		{"r", ratelimit.RollingWindow{Quota: 10, Window: time.Hour, Period: time.Minute, PeriodLimit: 5}},
		{"w", ratelimit.WarmingUp{Rate: ratelimit.PerSecond(10), Warmup: time.Second}},
		{"k", ratelimit.Lockout{Limit: 5, Window: time.Hour, First: time.Minute}},
		{"+t", ratelimit.All{bucket}},
		{"+tf", ratelimit.All{bucket, ratelimit.FixedWindow{Limit: 10, Window: time.Minute}}},
	} {
		tr, err := fakes.NewLimit(tt.alg)
		require.NoError(t, err)
		s.limiters.byName = nil // as in another process
		st, err := s.Open("api", tr, 0)
		require.NoError(t, err)
		assert.Equal(t, "rl:api@"+tt.want+"3:key", st.(*states).name("key").text, "%#v", tt.alg)
	}
	long := strings.Repeat("x", maxKey+1)
	for name, want := range map[string]string{
		"api":        "rl:api@*3",
		"{tag}@100%": "rl:%7Btag}%40100%25@*10",
	} {
		s.limiters.byName = nil
		own := &opened{Store: s}
		_, err = ratelimit.New(bucket, ratelimit.WithName(name), ratelimit.WithStore(own),
			ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return nil, nil }))
		require.NoError(t, err)
		st := own.states.(*states)
		assert.Equal(t, want+":key", st.name("key").text)
		assert.Equal(t, want+"{}:k{e}y", st.name("k{e}y").text)
		assert.Equal(t, want+"#DsnrM-dFELzdHy6lUgboLyFknFwr7L8rQz60dbNMAb0", st.name(long).text)
	}
}

// Two limiters of one process with one name and different limits are a mistake. The store
// remembers names, but not without end.
func TestOneLimitPerName(t *testing.T) {
	s, err := New(nonsense{})
	require.NoError(t, err)
	own := ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return nil, nil })
	limiter := func(limit int, name string, opts ...ratelimit.Option) error {
		_, err := ratelimit.New(ratelimit.FixedWindow{Limit: limit, Window: time.Minute}, append(opts, ratelimit.WithStore(s), ratelimit.WithName(name))...)
		return err
	}
	for range 2 {
		assert.NoError(t, limiter(10, "api"))
		assert.ErrorIs(t, limiter(20, "api"), ratelimit.ErrInvalid)
		assert.ErrorIs(t, limiter(10, "api", own), ratelimit.ErrInvalid)
		assert.NoError(t, limiter(20, "web"))
	}
	for i := range maxLimiters {
		require.NoError(t, limiter(10, strconv.Itoa(i)))
	}
	assert.LessOrEqual(t, len(s.limiters.byName), maxLimiters)
}

// With WithKeyTags, a tag in a key chooses the slot, and no two keys share a name.
func TestNamesWithTags(t *testing.T) {
	s, err := New(nonsense{}, WithKeyTags())
	require.NoError(t, err)
	st := namers(t, s, "api")[0]
	long, longTag := strings.Repeat("x", maxKey), strings.Repeat("t", maxKey+1)
	seen := map[string]bool{}
	for key, tag := range map[string]string{
		"{acme}": "acme", "{acme}:alice": "acme", "alice{acme}{x}": "acme", "{{}": "{", long + "{acme}": "acme", "{acme}" + long: "acme",
		"{" + longTag + "}": hashed(longTag), "{" + longTag + "}x": hashed(longTag),
		"": "", "acme": "", "{}acme": "", "{}{acme}": "", "{acme": "", "}{": "", long + "{}": "",
	} {
		name := st.name(key).text
		assert.Equal(t, tag, hashTag(name), "%.20q: %q", key, name)
		assert.False(t, seen[name], "%q", name)
		seen[name] = true
		assert.Less(t, len(name), 2*maxKey)
	}
	prefixed, err := New(nonsense{}, WithKeyTags(), WithPrefix("{rl}:"))
	require.NoError(t, err)
	assert.Equal(t, "rl", hashTag(namers(t, prefixed, "api")[0].name("{acme}").text))
}

// opened records the States of a limiter.
type opened struct {
	*Store
	states limit.States
}

func (o *opened) Open(name string, t *limit.Limit, timeout time.Duration) (_ limit.States, err error) {
	o.states, err = o.Store.Open(name, t, timeout)
	return o.states, err
}

// namers returns the states of a limiter with each of a few limits.
func namers(t testing.TB, s *Store, limiter string) (sts []*states) {
	for _, alg := range []ratelimit.Algorithm{
		ratelimit.FixedWindow{Limit: 1, Window: time.Hour},
		ratelimit.SlidingWindow{Limit: 2, Window: time.Hour},
		ratelimit.SlidingLog{Limit: 1, Window: time.Hour},
		ratelimit.All{ratelimit.SlidingLog{Limit: 1, Window: time.Hour}},
	} {
		tr, err := fakes.NewLimit(alg)
		require.NoError(t, err)
		s.limiters.byName = nil // as in another process
		st, err := s.Open(limiter, tr, 0)
		require.NoError(t, err)
		sts = append(sts, st.(*states))
	}
	return sts
}

// Different prefixes, limiters, kinds of limits and keys have different names. Names are short, and
// neither a limiter's name nor a key chooses the slot in a cluster.
func TestNames(t *testing.T) {
	seen := map[string]bool{}
	texts := []string{"", "a", "a:", ":a", "aa", "@", "@a", "%40", "%", "{", "{}", "{}:a", "a{}", "{a}", "}{", "#", "#a"}
	keys := append([]string{strings.Repeat("x", 128), strings.Repeat("x", 129), strings.Repeat("{", 128), strings.Repeat("x", 1<<20)}, texts...)
	for _, prefix := range []string{"", "p", "p:", "pa", "pa:"} {
		s, err := New(nonsense{}, WithPrefix(prefix))
		require.NoError(t, err)
		for _, limiter := range texts {
			for _, st := range namers(t, s, limiter) {
				for _, key := range keys {
					name := st.name(key).text
					require.False(t, seen[name], "prefix %q, limiter %q, key %.9q: %q names another key", prefix, limiter, key, name)
					seen[name] = true
					require.LessOrEqual(t, len(name), 160)
					require.True(t, strings.HasPrefix(name, prefix))
					if _, braces, ok := strings.Cut(name, "{"); ok {
						require.Equal(t, byte('}'), braces[0], "%q", name)
					}
				}
			}
		}
	}
	s, err := New(nonsense{})
	require.NoError(t, err)
	assert.Len(t, namers(t, s, "")[0].name("a key of 16 byte").text, 23, "for 32 bytes of memory")
}

// Whatever the names of two limiters and their keys, they share a name in Redis only if they
// are the same. The second texts are also tried as what follows the first name in Redis.
func FuzzNames(f *testing.F) {
	f.Add("api", "k", "", "k", uint8(0), uint8(0))
	f.Add("", "a@F:k", "", "k", uint8(0), uint8(1))
	f.Add("@", "{", "%40", "{}:{", uint8(1), uint8(1))
	f.Add("a", strings.Repeat("{", maxKey+1), "a", strings.Repeat("{", maxKey), uint8(2), uint8(2))
	plain, err := New(nonsense{})
	require.NoError(f, err)
	tags, err := New(nonsense{}, WithKeyTags())
	require.NoError(f, err)
	f.Add("a", "{x}"+strings.Repeat("y", maxKey), "a", "{x}", uint8(4), uint8(4))
	f.Fuzz(func(t *testing.T, limiterA, keyA, limiterB, keyB string, algA, algB uint8) {
		s := []*Store{plain, tags}[algA/4%2]
		a, b := namers(t, s, limiterA)[algA%4], namers(t, s, limiterB)[algB%4]
		tryPair := func(limiterB string, b *states, keyB string) {
			same := limiterA == limiterB && algA%4 == algB%4 && keyA == keyB
			assert.Equal(t, same, a.name(keyA).text == b.name(keyB).text, "%q %q %q %q", limiterA, keyA, limiterB, keyB)
		}
		tryPair(limiterB, b, keyB)
		longer := strings.TrimPrefix(a.name(limiterB).text, s.prefix)
		tryPair(longer, namers(t, s, longer)[algB%4], keyB)
		if rest, ok := strings.CutPrefix(a.name(keyA).text, b.head); ok && len(rest) > 1 {
			tryPair(limiterB, b, rest[1:])
			tryPair(limiterB, b, rest)
		}
	})
}
