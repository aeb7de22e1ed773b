package fakeredis

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/internal/limit"
)

// limits are the limits that the server has met, by the prefixes of their states.
type limits map[string]*limit.Limit

// of returns the limit that a prefix describes.
func (l *limits) of(tag string) (*limit.Limit, error) {
	known := (*l)[tag]
	if known != nil {
		return known, nil
	}
	some, err := fakes.NewLimit(ratelimit.FixedWindow{Limit: 1, Window: time.Second})
	if err != nil {
		return nil, err
	}
	some, err = some.Portable(tick)
	if err != nil {
		return nil, err
	}
	known, err = some.Origin([]byte(tag))
	if err != nil {
		return nil, err
	}
	if known == nil || string(known.Tag()) != tag {
		return nil, fmt.Errorf("ERR fakeredis: %q is not the prefix of the states of one limit", tag)
	}
	if *l == nil {
		*l = limits{}
	}
	(*l)[tag] = known
	return known, nil
}

// These begin a state: the versions of its form.
const (
	openVersion  = 2
	aheadVersion = 3
)

// A found value is what a script makes of the value of a key.
type found struct {
	outcome byte   // replyDone, replyOpen or replyAhead if the script can use the value
	state   []byte // as the kernels read it
	tells   string // the value without its prefix
}

// find returns what a script finds that knows states with these tags: those of the limit itself,
// and of limits that differ from it only in how much they grant.
func (run script) find(value string, c constants, tags []string) found {
	tag := tags[0]
	if value == "" {
		return found{outcome: replyDone}
	}
	words, short := longOf(value, c)
	if short {
		return found{replyDone, append([]byte(tag), words...), value}
	}
	for _, similar := range tags {
		rest, its := strings.CutPrefix(value, similar)
		if its {
			return found{replyDone, []byte(tag + rest), rest}
		}
	}
	rest, its := strings.CutPrefix(value[1:], tag[1:])
	switch {
	case its && !run.holds: // whatever the version is
		return found{outcome: replyHolds}
	case its && value[0] == openVersion:
		return found{replyOpen, []byte(value), rest}
	case its && value[0] == aheadVersion:
		return found{replyAhead, []byte(value), rest}
	}
	return found{outcome: replyOther}
}

// A bucket whose state is but an instant, in whole microseconds, has a value of this form: the
// digits of the microseconds since shortEpoch, and those of the code. See lua/parts.lua.
const (
	shortEpoch      = 15e14
	shortFrom       = 16e14 // instants before have no short form, nor do those from shortTo on
	shortTo         = 24e14
	shortLength     = 19
	shortCodeDigits = 4
)

// longOf returns the words of a value in the short form.
func longOf(value string, c constants) (words []byte, short bool) {
	if c.code < 0 || len(value) != shortLength {
		return nil, false
	}
	digits, code := value[:shortLength-shortCodeDigits], value[shortLength-shortCodeDigits:]
	at, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || code != fmt.Sprintf("%0*d", shortCodeDigits, c.code) {
		return nil, false
	}
	return append(binary.LittleEndian.AppendUint64(nil, at+shortEpoch), make([]byte, 16)...), true
}

// valueOf returns the value to keep for a state of the limit with a tag, in the short form if the
// state has one.
func valueOf(state []byte, c constants, tag string, now time.Time) string {
	words, its := strings.CutPrefix(string(state), tag)
	if c.code < 0 || !its || len(words) != 24 {
		return string(state)
	}
	word := func(i int) uint64 { return binary.LittleEndian.Uint64([]byte(words[8*i:])) }
	at, units, last := word(0), word(1), word(2)
	passed := uint64(now.UnixMicro())
	if c.queue {
		passed = at
	}
	if units > 0 || at < shortFrom || at >= shortTo || last > passed {
		return string(state)
	}
	return fmt.Sprintf("%d%0*d", at-shortEpoch, shortCodeDigits, c.code)
}
