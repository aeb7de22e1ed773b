package limitpage

import (
	"fmt"
	"strings"

	"github.com/ratelimit-go/ratelimit"
)

// This file names algorithms and their limits.

// wordsOfLimiter returns the words for the algorithm of l, or says that each key has a limit of its
// own.
func wordsOfLimiter(l ratelimit.Limiter) (name, limit string) {
	info := l.Describe()
	if info.Lookup != nil {
		return "limits by key", "each key has a limit of its own"
	}
	return words(info.Algorithm)
}

// words returns the name of an algorithm, as users of Go know it, and its limit in words.
func words(alg ratelimit.Algorithm) (name, limit string) {
	if alg == nil { // of a limiter that New has not made
		return "unknown algorithm", "unknown: the limiter does not tell it"
	}
	return strings.TrimPrefix(fmt.Sprintf("%T", alg), "ratelimit."), alg.String()
}
