package redisstore

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// The script of a single part reads its constants, the time and the first run of requests
// in one call of unpack.
func TestOpening(t *testing.T) {
	for kind := byte(bucketKind); kind <= warmingKind; kind++ {
		for _, v := range []variant{plain, longer} {
			text := scriptFor(false, v, []byte{kind}).text
			_, rest, _ := strings.Cut(text, ", now, op, times, n, wait, ")
			first, _, _ := strings.Cut(rest, "\n")
			assert.Contains(t, first, "dBI4dd", "kind %d", kind)
		}
	}
}
