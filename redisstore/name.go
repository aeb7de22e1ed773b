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
// With WithKeyTags, a key that has a hash tag has it in its name, too:
//
//	rl:api@yiZnfI1:{acme}:192.0.2.1        a key with a tag
//	rl:api@yiZnfI1#{acme}DsnrM-dFELz…      a long one; a tag longer than maxKey is replaced by its SHA-256
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
// nothing. So braces in the prefix choose the slot, and braces in a limiter's name or, without
// WithKeyTags, a key do not: those of the name are escaped, and {} precedes those of a key.

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
	if s.keyTags {
		if tag := hashTag(key); tag != "" {
			return nameOf(s.head + tagged(key, tag))
		}
	}
	switch {
	case len(key) > maxKey:
		return nameOf(s.head + "#" + hashed(key))
	case strings.Contains(key, "{"):
		return nameOf(s.head + "{}:" + key)
	}
	return nameOf(s.head + ":" + key)
}

// tagged returns the end of the name of a key with a tag.
func tagged(key, tag string) string {
	if len(key) <= maxKey {
		return ":" + key
	}
	if len(tag) > maxKey {
		tag = hashed(tag)
	}
	return "#{" + tag + "}" + hashed(key)
}

// hashTag returns the part of the name of a key that chooses its slot, or "" if that is the
// whole name.
func hashTag(name string) string {
	_, rest, _ := strings.Cut(name, "{")
	tag, _, ok := strings.Cut(rest, "}")
	if !ok {
		return ""
	}
	return tag
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
