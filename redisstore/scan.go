package redisstore

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/param"
	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/redisstore/internal/script"
)

// An Entry is a key that Redis keeps for a limiter. See [Store.Scan].
type Entry struct {
	Limiter string // its name

	// Key is the key. If the key is longer than 128 bytes, Redis does not have it: Key is empty,
	// and Hash is the SHA-256 of the key, encoded by base64.RawURLEncoding.
	Key, Hash string

	// Algorithm is the limit that granted last. With [ratelimit.WithLimits], or if the limit has
	// been changed, it may differ from the one that the next request is decided by.
	Algorithm ratelimit.Algorithm

	// Decision is what Peek would return, with Algorithm, at the time of Redis at which the value
	// was read. Limit less Remaining events are used. What processes have leased counts as used.
	Decision ratelimit.Decision

	// Err says why there are no Algorithm and no Decision, or is nil. It matches
	// [ratelimit.ErrState] if the value cannot be read, because it is damaged or a later version
	// has written it, and [ErrUnknownLimit] if the value does not say enough. Other errors
	// are those of the client and of the server.
	Err error
}

// ErrUnknownLimit means that the value of a key of a TokenBucket or LeakyBucket does not say what
// the limit is, and that no limiter of that name and kind has been made with the store. Make one
// before [Store.Scan].
var ErrUnknownLimit = errors.New(
	"redisstore: the value is short, and this store has no limiter of that name and kind")

// Scan returns the keys that the limiters of these names have in Redis, or with no names those of
// all limiters with the store's prefix, and how much of their limits is used. It changes nothing.
// It is for operators: the package page docs/redis.md shows how to find out why a user was refused.
//
// Keys are in no order. One that is there all the time is found at least once; one that is added or
// deleted meanwhile may be found or not. In a cluster whose slots are moving, keys may be missed. A
// key whose state equals that of a new key is not in Redis.
//
// Scan sends SCAN to each server, in a cluster to each primary, and reads the values in batches. It
// needs the permission +scan as well. SCAN visits all keys of a server, also those of other
// programs, a few hundred at a time, so that the server is never busy with it for long. Scan waits
// for each reply as long as the client does, and asks no breaker.
//
// An entry whose value cannot be read has an Err. With an error as the second value, the entry is
// empty, and keys of a server are missing; the next servers follow. The last error is that of
// ctx if that ends first, and it matches [ratelimit.ErrInvalid] if the [Conn] is no [Scanner].
func (s *Store) Scan(ctx context.Context, limiters ...string) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		if ctx == nil {
			yield(Entry{}, errNoContext)
			return
		}
		scanner, ok := s.conn.(Scanner)
		if !ok {
			yield(Entry{}, param.InvalidIn("redisstore", "the Conn", fmt.Sprintf("%T", s.conn),
				"must have the method Scan of a Scanner to list keys"))
			return
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		pages := s.scanPages(ctx, scanner, limiters)
		for {
			page, ok := nextPage(ctx, pages)
			switch {
			case ctx.Err() != nil:
				yield(Entry{}, fmt.Errorf("redisstore: the scan has not ended: %w", ctx.Err()))
				return
			case !ok:
				return
			case page.err != nil && !yield(Entry{}, page.err):
				return
			}
			for _, entry := range page.entries {
				if !yield(entry, nil) {
					return
				}
			}
		}
	}
}

// A scanPage is what Scan has found by one reply to SCAN.
type scanPage struct {
	entries []Entry
	err     error // why keys are missing
}

// scanCount is how many keys a server visits for one SCAN.
const scanCount = 256

// scanPages finds pages in a goroutine, because the client may ignore ctx. The channel is closed
// behind the last page, and has none after the end of ctx.
func (s *Store) scanPages(ctx context.Context, scanner Scanner, limiters []string) <-chan scanPage {
	pages := make(chan scanPage)
	go func() {
		defer close(pages)
		for names, err := range scanner.Scan(ctx, s.scanPattern(limiters), scanCount) {
			page := scanPage{err: err}
			if err == nil {
				page.entries = s.readEntries(ctx, s.keysIn(names, limiters))
			}
			select {
			case pages <- page:
			case <-ctx.Done():
				return
			}
		}
	}()
	return pages
}

// nextPage returns the next page. ok is false if there is none, or if ctx has ended.
func nextPage(ctx context.Context, pages <-chan scanPage) (page scanPage, ok bool) {
	select {
	case page, ok = <-pages:
		return page, ok
	case <-ctx.Done():
		return page, false
	}
}

// literal makes a text a pattern that only the text matches.
var literal = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`)

// scanPattern returns the pattern of the names of the limiters' keys, and perhaps of others.
func (s *Store) scanPattern(limiters []string) string {
	if len(limiters) == 1 {
		return literal.Replace(s.prefix+escaped.Replace(limiters[0])) + "@*"
	}
	return literal.Replace(s.prefix) + "*@*"
}

// A storedKey is what the name of a key in Redis says.
type storedKey struct {
	name      string
	head      string // what it begins with, after the prefix
	limiter   string
	kind      string // the letters of the limit
	key, hash string // as in an Entry
}

// keysIn returns the keys of limiters, or of all if there are none, among those with these names.
func (s *Store) keysIn(names, limiters []string) (keys []storedKey) {
	for _, name := range names {
		key, ok := s.parseName(name)
		if ok && (len(limiters) == 0 || slices.Contains(limiters, key.limiter)) {
			keys = append(keys, key)
		}
	}
	return keys
}

var unescaped = strings.NewReplacer("%25", "%", "%7B", "{", "%40", "@")

// parseName returns what a name says, or false if it is not one of this store: see name.go.
func (s *Store) parseName(name string) (key storedKey, ok bool) {
	rest, ok := strings.CutPrefix(name, s.prefix)
	if !ok {
		return key, false
	}
	limiter, rest, ok := strings.Cut(rest, "@")
	key = storedKey{name: name, limiter: unescaped.Replace(limiter)}
	if !ok || escaped.Replace(key.limiter) != limiter {
		return key, false
	}
	digits := strings.IndexAny(rest, "0123456789")
	if digits < 1 {
		return key, false
	}
	key.kind = rest[:digits]
	form, ok := strings.CutPrefix(rest[digits:], strconv.Itoa(len(key.limiter)))
	if !ok {
		return key, false
	}
	key.head = name[len(s.prefix) : len(name)-len(form)]
	key.key, key.hash, ok = parseForm(form)
	return key, ok
}

// parseForm returns the key or its hash from the end of a name.
func parseForm(form string) (key, hash string, ok bool) {
	for _, before := range []string{":", "{}:"} {
		key, ok = strings.CutPrefix(form, before)
		if ok {
			return key, "", true
		}
	}
	long, ok := strings.CutPrefix(form, "#")
	at := len(long) - len(hashed(""))
	if !ok || at < 0 {
		return "", "", false
	}
	if at > 0 && (long[0] != '{' || long[at-1] != '}') {
		return "", "", false
	}
	return "", long[at:], true
}

// readEntries reads the values of keys. It leaves out those that have none any more.
func (s *Store) readEntries(ctx context.Context, keys []storedKey) (entries []Entry) {
	for batch := range slices.Chunk(keys, maxBatch) {
		for i, reply := range s.readValues(ctx, batch) {
			entry, ok := s.readEntry(batch[i], reply)
			if ok {
				entries = append(entries, entry)
			}
		}
	}
	return entries
}

// readValues sends the commands that read values. Those of keys that have moved to another server
// are sent again, by themselves, because only then the client follows redirections.
func (s *Store) readValues(ctx context.Context, keys []storedKey) []Reply {
	commands := make([]Command, len(keys))
	for i, key := range keys {
		commands[i] = getCommand(key.name)
	}
	s.counts.calls.Add(uint64(len(commands)))
	replies := s.do(ctx, commands)
	for i := range replies {
		if isRedirection(replies[i].Err) {
			replies[i] = s.do(ctx, commands[i:i+1])[0]
		}
	}
	return replies
}

// readEntry returns the entry of a key, or false if it has no value.
func (s *Store) readEntry(key storedKey, reply Reply) (entry Entry, ok bool) {
	entry = Entry{Limiter: key.limiter, Key: key.key, Hash: key.hash, Err: reply.Err}
	if entry.Err == nil && len(reply.Text) < 9 {
		entry.Err = errShort
	}
	if entry.Err != nil {
		return entry, true
	}
	value, at := reply.Text[9:], timeIn(reply.Text)
	if value == "" {
		return entry, false
	}
	state, err := s.stateIn(key, value)
	if err != nil {
		entry.Err = err
		return entry, true
	}
	present, err := limit.Present(state, script.Tick)
	if err != nil {
		entry.Err = err
		return entry, true
	}
	// The error is nil, because the state has just been read.
	peek, _ := present.Apply(state, step.Request{Op: step.OpPeek, N: 1}.At(at))
	entry.Algorithm = limit.AlgorithmOf(&present.Spec).(ratelimit.Algorithm)
	entry.Decision = ratelimit.Decision(peek.Answer.Decision)
	return entry, true
}

// stateIn returns the state that is stored as the value of a key. The short form of a bucket's
// states does not say what its depth is.
func (s *Store) stateIn(key storedKey, value string) ([]byte, error) {
	if len(key.kind) != 1 || !script.IsShort(key.kind[0], value) {
		return []byte(value), nil
	}
	opened := s.limiters.named(key.limiter)
	if opened == nil {
		return nil, ErrUnknownLimit
	}
	prog, err := s.programs.get(opened)
	if err != nil || head(key.limiter, prog, opened.Varies) != key.head {
		return nil, ErrUnknownLimit
	}
	return prog.StateOf(value), nil
}
