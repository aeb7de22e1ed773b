package storetest

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// The tests in this file check that a store keeps keys, and that different keys have different
// states.

// confusable are strings that some databases confuse with one another. The first one is empty: it
// can be a key, but not a name.
var confusable = []string{
	"", "\x00", "\x00\x00", " ", "a", "A", "a ", " a", "a\x00",
	"\xff", "\xfe", "\ufffd", "é", "e\u0301",
	"{a}", "{b}", "a:", ":a", "a:b", "a/b", "a\nb", "*", "%", "_", "?", "'", "%61", "a%3Ab",
}

// equals are keys that a collation, a numeric column or a path treats as equal.
var equals = []string{
	"e", "É", "ss", "ß", "a\n", "a\r\n", "1", "01", "1.0", "+1", "1e0",
	"a/", "/a", "a//b", "b/../a/b", "./a",
}

func testNames(s *suite) {
	alg := ratelimit.FixedWindow{Limit: 2, Window: time.Hour}
	b := s.bench(alg, ratelimit.WithName("a"))
	same := s.limiter(b, alg, ratelimit.WithName("a"))
	other := s.limiter(b, alg, ratelimit.WithName("b"))
	b.Allow("k")
	if d := s.peek(same, "k"); d.Remaining != 1 {
		s.broken("a limiter with the same name has another state: %+v", d)
	}
	if d := s.peek(other, "k"); d.Remaining != 2 {
		s.broken("a limiter with another name shares the state: %+v", d)
	}

	// Different pairs of a name and a key are different keys, wherever the name ends and
	// however long they are.
	prefix := strings.Repeat("x", 300)
	names := []string{
		prefix, prefix + "y", prefix[:255], prefix[:63], prefix[:64], prefix[:16], prefix[:17],
	}
	names = append(names, confusable[1:]...)
	keys := []string{"", "a", "b", ":b", "b:c", "c", "\x00", "a:b:c"}
	one := ratelimit.FixedWindow{Limit: 1, Window: time.Hour}
	b = s.bench(one, ratelimit.WithName("the first"))
	limiters := make([]ratelimit.Limiter, len(names))
	for i, name := range names {
		limiters[i] = s.limiter(b, one, ratelimit.WithName(name))
	}
	for _, allowed := range []bool{true, false} {
		for i, name := range names {
			for _, key := range keys {
				d := s.take(limiters[i], key, 1)
				switch {
				case d.Allowed && !allowed:
					s.broken("name %.70q (%d bytes), key %q: the key was forgotten",
						name, len(name), key)
				case allowed && !d.Allowed:
					s.broken("name %.70q (%d bytes), key %q: confused with another key",
						name, len(name), key)
				}
			}
		}
	}
}

// testSameName opens a second limiter with the same name and another algorithm. The store
// may refuse it. If not, the second limiter must not make the first one grant more than
// its limit.
func testSameName(s *suite) {
	hour := ratelimit.FixedWindow{Limit: 3, Window: time.Hour}
	for name, other := range map[string]ratelimit.Algorithm{
		"other parameters": ratelimit.FixedWindow{Limit: 100, Window: time.Hour},
		"another kind":     ratelimit.SlidingLog{Limit: 100, Window: time.Hour},
		"in an All":        ratelimit.All{hour},
	} {
		b := s.bench(hour, ratelimit.WithName("n"))
		l, err := s.tryLimiter(b, other, ratelimit.WithName("n"))
		if errors.Is(err, ratelimit.ErrInvalid) {
			continue
		}
		if err != nil {
			s.broken("%s: refused with an error that is not ErrInvalid: %v", name, err)
		}
		granted := 0
		for range 10 {
			if b.Allow("k") {
				granted++
			}
			s.take(l, "k", 1)
		}
		if granted > hour.Limit {
			s.broken("%s: the first limiter granted %d of %d, "+
				"because the second one resets its state",
				name, granted, hour.Limit)
		}
	}
}

func testKeys(s *suite) {
	b := s.bench(ratelimit.FixedWindow{Limit: 1, Window: time.Hour})
	long := strings.Repeat("x", 1<<20)
	keys := []string{
		long, long[:1<<20-1], long + "y",
		long[:129], long[:128], long[:255], long[:256], long[:1024], long[:65536],
		"\xff\xfe", "\xfe\xff", "\xffa", "\xfea", "\ufffda", "\xc3\x28", "\xc3\x29",
	}
	keys = append(keys, confusable...)
	keys = append(keys, equals...)
	for n := 170; n < 210; n++ { // around the longest key that NewStore does not hash
		keys = append(keys, long[:n])
	}
	for i, key := range keys {
		if !b.Allow(key) {
			s.broken("key %d, %.20q (%d bytes), is confused with another key", i, key, len(key))
		}
	}
	for i, key := range keys {
		if b.Allow(key) {
			s.broken("key %d, %.20q (%d bytes), was forgotten", i, key, len(key))
		}
	}
}

func testManyKeys(s *suite) {
	b := s.bench(ratelimit.TokenBucket{Rate: ratelimit.Every(24 * time.Hour)})
	key := func(i int) string { return fmt.Sprint("user ", i) }
	var next atomic.Int64
	most, enough := s.Keys, time.Now().Add(365*24*time.Hour)
	if most == 0 {
		most, enough = 12_000, time.Now().Add(10*time.Second)
	}
	callers, each := 64, (most+63)/64
	granted := contend(callers, each, func() bool {
		if time.Now().After(enough) {
			return true
		}
		i := int(next.Add(1)) - 1
		return i >= most || b.Allow(key(i))
	})
	keys := min(int(next.Load()), most)
	if keys < most {
		s.Logf("tested with %d keys, because the store is slow", keys)
	}
	if denied := callers*each - granted; denied > 0 {
		s.broken("%d of %d keys were denied their first event", denied, keys)
	}
	for i := range keys {
		if i >= 100 && i%101 != 0 {
			continue // check only the oldest keys and some of the others
		}
		if d := s.peek(b, key(i)); d.Allowed {
			s.broken("key %d of %d was forgotten %v too early", i, keys, 24*time.Hour)
		}
	}
}

// testLargeStates stores states of 16 KiB and 96 KiB. It also stores small states that differ only
// in their last byte: a column for text may take this byte for a space, and cut it off.
func testLargeStates(s *suite) {
	for high := range int64(60) { // the last byte of a bucket's state, if the tick is 1ns
		b := s.bench(ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)})
		b.clk.Set(time.Unix(0, high<<56+1<<40))
		for i := range 2 {
			if d := s.take(b, "k", 1); d.Allowed != (i == 0) {
				s.broken("at %v, Take %d of a bucket of 1 decides %+v", b.clk.Now(), i+1, d)
			}
		}
	}
	const segments = 4095
	window := ratelimit.SlidingWindow{Limit: 3, Window: segments * time.Second, Segments: segments}
	for name, alg := range map[string]ratelimit.Algorithm{
		"16 KiB": window,
		"96 KiB": ratelimit.All{window, window, window, window, window, window},
	} {
		b := s.bench(alg)
		for i := range 3 {
			if d := s.take(b, "k", 1); !d.Allowed || d.Remaining != 2-i {
				s.broken("%s: event %d of 3: %+v", name, i+1, d)
			}
			b.clk.Advance(time.Second)
		}
		d := s.take(b, "k", 1)
		if d.Allowed {
			s.broken("%s: a fourth event of 3 was granted", name)
		}
		b.clk.Advance(d.RetryAfter)
		if d := s.take(b, "k", 1); !d.Allowed {
			s.broken("%s: denied at RetryAfter: %+v", name, d)
		}
	}
}

// testReset resets keys that a pattern or a prefix may stand for.
func testReset(s *suite) {
	alg := ratelimit.FixedWindow{Limit: 1, Window: time.Hour}
	b := s.bench(alg, ratelimit.WithName("n"))
	others := map[string]ratelimit.Limiter{
		"test": s.limiter(b, alg),
		"n":    b,
		"n2":   s.limiter(b, alg, ratelimit.WithName("n2")),
	}
	for _, l := range others {
		for _, key := range confusable {
			l.Allow(key)
		}
	}
	for _, key := range confusable {
		s.reset(b, key)
		for name, l := range others {
			for _, kept := range confusable {
				if name == "n" && kept == key {
					continue
				}
				if d := s.peek(l, kept); d.Allowed {
					s.broken(`Reset of key %q of limiter "n" forgot key %q of limiter %q`,
						key, kept, name)
				}
			}
		}
		if !b.Allow(key) {
			s.broken("key %q is not fresh after Reset", key)
		}
	}
	s.reset(b, "never seen")
}

func (s *suite) reset(l ratelimit.Limiter, key string) {
	s.Helper()
	s.succeeded(l.Reset(ctx, key))
}
