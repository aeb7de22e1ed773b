package redisstore

import (
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// The return of a lease must not take events back that others have spent since the key was reset. What is
// held or reserved needs no care, because it is an entry of the state, which a Reset has deleted. But
// leases have no entry, which would keep the fast scripts from deciding on their key. The process that
// resets a key knows which of its leases are void; other processes must learn of it. So a Reset leaves a tombstone: a second key with the
// time of the Reset, which expires when the state that was deleted would have expired. From then
// on, none of the events that were spent before the Reset counts any more, so there is nothing to
// take back. If a key is reset again, its tombstone lasts as long as the latest of these states.
//
// Only the scripts for commands that take events back read the tombstone. If it is not earlier
// than what a command takes back, they change nothing and reply with its time. Then the command is
// sent again, without what is void. That happens at most once for each Reset, because the
// command has nothing that is earlier from then on.
//
// Times are those of the server. With WithLimiterClock, there are no tombstones, because Reset
// does not know that clock.
//
// While a slot of a cluster moves, Redis refuses commands with two keys of which one is missing,
// as the tombstone usually is. They are sent again without the tombstone.

// resetText is the script of Reset. Redis keeps a key until the end of its last millisecond.
const resetText = `local left = math.max(redis.call('PTTL', KEYS[1]), redis.call('PTTL', KEYS[2]))
redis.call('DEL', KEYS[1])
if left >= 0 then
local t = redis.call('TIME')
redis.call('PSETEX', KEYS[2], left + 1, t[1] .. string.format('%06d', t[2]))
end
return ''`

// reset returns the command that resets a key.
func (s *Store) reset(name name) Command {
	c := Command{Words: []string{"EVAL", resetText, "2", name.text, s.tombstone(name.text)}, Key: 3}
	if s.limiterClock {
		return c.alone()
	}
	return c
}

// alone returns a command with a tombstone as one that does without.
func (c Command) alone() Command {
	if c.Words[1] == resetText {
		return Command{Words: []string{"DEL", c.Words[c.Key]}, Key: 1}
	}
	words := slices.Delete(slices.Clone(c.Words), c.Key+1, c.Key+2)
	words[c.Key-1] = "1"
	return Command{Words: words, Key: c.Key}
}

// errReset means that the key was reset after some of the events to take back were spent. The
// command has changed nothing.
var errReset = errors.New("redisstore: the key was reset")

// sendWithout puts the calls of a group back at the head of the queue, without what is void
// because the key was reset at the time in the reply.
func (s *Store) sendWithout(q *queue, g *group) bool {
	q.forget(g, kernel.Instant(double(g.reply[9:])))
	again := slices.DeleteFunc(g.calls, func(c *call) bool { return c.claimed.Load() })
	for _, c := range again {
		c.again++
	}
	return q.detach(g, again)
}

// forget answers the calls of g that are void because the key was reset, and leaves in the others
// what is not. The former leave g first: once it is answered, a call belongs to its caller.
func (q *queue) forget(g *group, at kernel.Instant) {
	var void, left []*call
	for _, c := range g.calls {
		if c.req.Op == kernel.OpReturn && c.wait() <= float64(at) {
			void = append(void, c)
		} else {
			left = append(left, c)
		}
	}
	q.shard.mu.Lock()
	g.calls = left
	q.shard.mu.Unlock()
	for _, c := range void {
		c.answer(nil)
	}
}

// tombstone returns the name of a key's tombstone. It has ! after the length of the
// limiter's name, as no key's name has, and at the end three characters that make it have the key's slot in a cluster: if
// Redis does not choose the slot by a tag in the prefix, the checksums of both names end with the
// same bits.
func (s *Store) tombstone(name string) string {
	at := len(s.prefix) + strings.IndexByte(name[len(s.prefix):], '@')
	at += strings.IndexAny(name[at:], ":{#")
	head, rest := name[:at], name[at:]
	sum := checksum(0, head)
	other := next(sum, '!')
	for i := range len(rest) {
		sum, other = next(sum, rest[i]), next(other, rest[i])
	}
	difference := sum ^ checksum(other, "\x00\x00\x00")
	ending := endings()[difference%slots]
	return head + "!" + rest + string(ending[:])
}

// slots is the number of slots of a Redis Cluster. A slot is the end of a checksum.
const slots = 1 << 14

// checksum returns the checksum by which Redis Cluster chooses a slot, CRC-16/XMODEM, of text
// after one with the checksum sum.
func checksum(sum uint16, text string) uint16 {
	for i := range len(text) {
		sum = next(sum, text[i])
	}
	return sum
}

func next(sum uint16, char byte) uint16 { return sum<<8 ^ checksums[byte(sum>>8)^char] }

// checksums are those of single bytes.
var checksums = func() (sums [256]uint16) {
	for i := range sums {
		sum := uint16(i) << 8
		for range 8 {
			sum = sum<<1 ^ sum>>15*0x1021
		}
		sums[i] = sum
	}
	return sums
}()

// endings returns, for each end of a checksum, three characters whose checksum ends like that.
// The checksum of a text with these characters at its end is the exclusive or of theirs and that
// of the text with three zero bytes instead.
var endings = sync.OnceValue(func() *[slots][3]byte {
	const characters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	found := new([slots][3]byte)
	for _, a := range []byte(characters) {
		for _, b := range []byte(characters) {
			two := checksum(0, string([]byte{a, b}))
			for _, c := range []byte(characters) {
				found[checksum(two, string([]byte{c}))%slots] = [3]byte{a, b, c}
			}
		}
	}
	return found
})
