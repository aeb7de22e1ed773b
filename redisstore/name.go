package redisstore

import (
	"crypto/sha256"
	"encoding/base64"
	"hash/maphash"
	"strconv"
	"strings"
)

// The name of a key in Redis consists of the store's prefix, the limiter's name, @, the kind of the
// limit, the length of the limiter's name, and the key in one of three forms:
//
//	rl:api@t3:192.0.2.1       a key
//	rl:api@t3{}:{192.0.2.1}   a key that contains {
//	rl:api@t3#DsnrM-dFELz…    a key longer than maxKey: its SHA-256, in 43 characters
//
// With WithKeyTags, a key that has a hash tag has it in its name, too:
//
//	rl:api@t3:{acme}:192.0.2.1        a key with a tag
//	rl:api@t3#{acme}DsnrM-dFELz…      a long one; of a tag longer than maxKey, it has the SHA-256
//
// So a limit keeps its keys when its parameters change, and does not share them with one of another
// kind. The kind is a letter for each part (internal/limit/kinds.go): of the algorithm or, after a
// +, of an All. With WithLimits it is a *. Names are short because Redis keeps each of them.
//
// The limiter's name is escaped so that it contains no @. So @ ends it, the next of the
// characters :, { and # ends the length and tells the form, and no two keys share a name, even of
// stores with different prefixes.
//
// Redis Cluster chooses the slot by what is between the first { and the next }, unless that is
// nothing. So braces in the prefix choose the slot, and braces in a limiter's name or, without
// WithKeyTags, a key do not: those of the name are escaped, and {} precedes those of a key.

// maxKey is the length of the longest key, in bytes, that its name in Redis contains
// literally.
const maxKey = 128

var escaped = strings.NewReplacer("%", "%25", "{", "%7B", "@", "%40")

// head returns what the names of a limiter's keys begin with, after the prefix.
func head(limiter string, prog *program, varies bool) string {
	kind := prog.Letters
	if varies {
		kind = "*"
	}
	return escaped.Replace(limiter) + "@" + kind + strconv.Itoa(len(limiter))
}

func hashed(text string) string {
	sum := sha256.Sum256([]byte(text))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

func (s *states) name(key string) name {
	n := nameOf(s.head + s.tail(key))
	n.of, n.key = s, key
	return n
}

// tail returns what the name of a key ends with, after the head.
func (s *states) tail(key string) string {
	if s.keyTags {
		if tag := hashTag(key); tag != "" {
			return tagged(key, tag)
		}
	}
	switch {
	case len(key) > maxKey:
		return "#" + hashed(key)
	case strings.Contains(key, "{"):
		return "{}:" + key
	}
	return ":" + key
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

	// Whose key it is, if the policy of a limiter decides while the store fails, and nil otherwise.
	of  *states
	key string
}

func nameOf(text string) name { return name{text: text, hash: maphash.String(seed, text)} }

var seed = maphash.MakeSeed()

// shards is the number of shards of each map by key.
const shards = 64

func (n name) shard() int { return int(n.hash % shards) }
