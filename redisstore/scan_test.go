package redisstore

import (
	"context"
	"errors"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/fakes"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

// The name of a key says which limiter and key it is, unless the key is long.
func TestParseName(t *testing.T) {
	of, err := fakes.NewLimit(ratelimit.All{
		ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)},
		ratelimit.SlidingLog{Limit: 2, Window: time.Second},
	})
	require.NoError(t, err)
	prog, err := newProgram(of)
	require.NoError(t, err)
	long := strings.Repeat("k", maxKey+1)
	for _, tags := range []bool{false, true} {
		for _, prefix := range []string{"rl:", "", "{tag}"} {
			store := &Store{config: config{prefix: prefix, keyTags: tags}}
			for _, limiter := range []string{"api", "", "a@{%}25", "%40", "ü"} {
				for _, varies := range []bool{false, true} {
					of := &states{Store: store, head: prefix + head(limiter, prog, varies)}
					for _, key := range []string{"", "k", ":k", "{k}", "{a}k", "#k", "@t3:k", long, "{a}" + long} {
						got, ok := store.parseName(of.name(key).text)
						require.True(t, ok, "%q", of.name(key).text)
						assert.Equal(t, limiter, got.limiter)
						assert.Equal(t, head(limiter, prog, varies), got.head)
						if len(key) > maxKey {
							assert.Equal(t, hashed(key), got.hash)
							key = ""
						}
						assert.Equal(t, key, got.key)
					}
				}
			}
		}
	}
}

// A name that no limiter of the store gives to a key is not one of its keys, however close it comes.
func TestParseNameOfOthers(t *testing.T) {
	store := &Store{config: config{prefix: "rl:"}}
	hash := hashed("k")
	for _, name := range []string{
		"rl:api@t3:k",
		"rl:api@t3{}:{k}",
		"rl:api@t3#" + hash,
		"rl:api@t3#{a}" + hash,
	} {
		_, ok := store.parseName(name)
		assert.True(t, ok, "%q", name)
	}
	for _, name := range []string{
		"",
		"api@t3:k",
		"rl:",
		"rl:api",
		"rl:api@",
		"rl:api@t",
		"rl:api@3:k",
		"rl:api@t4:k",
		"rl:api@t33:k",
		"rl:api@t3",
		"rl:api@t3k",
		"rl:{api}@t5:k", // which no limiter's name is without escapes
		"rl:api@t3#" + hash[1:],
		"rl:api@t3#k" + hash,
		"rl:api@t3#{" + hash,
		"rl:api@t3#}" + hash,
		"rl:api@t3#{a" + hash,
		"rl:api@t3#a}" + hash,
		"rl:api@t3#a{}b" + hash,
	} {
		key, ok := store.parseName(name)
		assert.False(t, ok, "%q is %+v", name, key)
	}
}

// A listing is a Conn whose server has these pages of names, and no values.
type listing struct {
	plainConn
	pages []any // []string or error
}

func (l listing) Scan(context.Context, string, int) iter.Seq2[[]string, error] {
	return func(yield func([]string, error) bool) {
		for _, page := range l.pages {
			err, _ := page.(error)
			names, _ := page.([]string)
			if !yield(names, err) {
				return
			}
		}
	}
}

func (listing) Do(_ context.Context, commands []Command) []Reply {
	return errorsOf(commands, errors.New("no value"))
}

// An error of a server, or about a key, does not end a scan.
func TestScanErrors(t *testing.T) {
	down := errors.New("down")
	s, err := New(listing{pages: []any{[]string{"rl:a@t1:1", "x"}, down, []string{"rl:a@t1:2"}}})
	require.NoError(t, err)
	var keys []string
	var failed []error
	for entry, err := range s.Scan(t.Context()) {
		if err != nil {
			failed = append(failed, err)
			continue
		}
		require.EqualError(t, entry.Err, "no value")
		keys = append(keys, entry.Key)
	}
	assert.Equal(t, []string{"1", "2"}, keys)
	assert.Equal(t, []error{down}, failed)
}

// A silentListing is a listing that returns no replies.
type silentListing struct{ listing }

func (silentListing) Do(context.Context, []Command) []Reply { return nil }

// Too few replies are an error of all keys, as of all commands.
func TestScanNumberOfReplies(t *testing.T) {
	names := []string{"rl:a@t1:1", "rl:a@t1:2"}
	s, err := New(silentListing{listing{pages: []any{names}}})
	require.NoError(t, err)
	found := 0
	for entry, err := range s.Scan(t.Context()) {
		require.NoError(t, err)
		require.ErrorContains(t, entry.Err, "returned 0 replies to 2 commands")
		found++
	}
	assert.Equal(t, len(names), found)
}

// A scan that cannot begin says why.
func TestScanRefused(t *testing.T) {
	plain, err := New(struct{ Conn }{listing{}})
	require.NoError(t, err)
	for _, err := range plain.Scan(t.Context()) {
		require.ErrorIs(t, err, ratelimit.ErrInvalid)
		assert.ErrorContains(t, err, "the method Scan of a Scanner")
	}
	for _, err := range plain.Scan(nil) { //nolint:staticcheck // that is the mistake
		require.ErrorIs(t, err, ratelimit.ErrInvalid)
	}
}
