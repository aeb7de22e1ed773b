package redisstore

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"hash/maphash"
	"strings"
)

// The name of a key in Redis consists of the store's prefix, the limiter's name, @, a
// fingerprint, and the key in one of three forms:
//
//	rl:api@yiZnfI1:192.0.2.1       a key
//	rl:api@yiZnfI1{}:{192.0.2.1}   a key that contains {
//	rl:api@yiZnfI1#DsnrM-dFELz…    a key longer than maxKey: its SHA-256, in 43 characters
//
// Names are short because Redis keeps each of them: with an unnamed limiter, 12 bytes and a
// key of 16 just fit into 32 bytes of the memory allocator.
//
// The limiter's name is escaped so that it contains no @. So @ ends it, the next of the
// characters :, { and # ends the fingerprint and tells the form, and no two keys of one
// store share a name unless fingerprints collide. That can happen only to limiters with the same
// name and different parameters, and to stores with different prefixes. The fingerprint has
// 42 bits: among a thousand different limits that one limiter has had, the probability that
// any two have the same one is 10⁻⁷.
//
// Redis Cluster chooses the slot by what is between the first { and the next }, unless that is
// nothing. So braces in the prefix choose the slot, and braces in a limiter's name or a key do
// not: those of the name are escaped, and {} precedes those of a key.

// nameVersion is the version of the format of key names, and of the values if they have no
// header. The encoding of the parameters has its own version, in the header.
const nameVersion = 3

// fingerprint is the length of a fingerprint, in characters of 6 bits.
const fingerprint = 7

// maxKey is the length of the longest key, in bytes, that its name in Redis contains
// literally.
const maxKey = 128

var escaped = strings.NewReplacer("%", "%25", "{", "%7B", "@", "%40")

// head returns what the names of a limiter's keys begin with, after the prefix. It depends on
// the parameters, unless each state carries them as its tag.
func head(limiter string, prog *program) string {
	id := binary.AppendUvarint([]byte{nameVersion}, uint64(len(limiter)))
	id = append(id, limiter...)
	if prog.tag == "" {
		id = append(id, prog.header...)
	}
	return escaped.Replace(limiter) + "@" + hashed(string(id))[:fingerprint]
}

func hashed(text string) string {
	sum := sha256.Sum256([]byte(text))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

func (s *states) name(key string) name {
	switch {
	case len(key) > maxKey:
		return nameOf(s.head + "#" + hashed(key))
	case strings.Contains(key, "{"):
		return nameOf(s.head + "{}:" + key)
	}
	return nameOf(s.head + ":" + key)
}

// A name is the name of a key in Redis, and its hash.
type name struct {
	text string
	hash uint64
}

func nameOf(text string) name { return name{text, maphash.String(seed, text)} }

var seed = maphash.MakeSeed()

// shards is the number of shards of each map by key.
const shards = 64

func (n name) shard() int { return int(n.hash % shards) }
