package redisstore

import "time"

// This file has a map that forgets, for what is known of keys that were in use lately.

// maxRecent bounds the keys in one generation of a recent.
const maxRecent = 256

// A recent is a map that forgets old entries. It has two generations: entries go into the
// younger, and when that is old or full, it replaces the elder and a new one begins.
type recent[V any] struct {
	young, elder map[string]V
	born         time.Duration // when the younger generation began
}

func (r *recent[V]) get(key string) (v V, ok bool) {
	v, ok = r.young[key]
	if !ok {
		v, ok = r.elder[key]
	}
	return v, ok
}

func (r *recent[V]) put(key string, v V, now, age time.Duration) {
	if r.young == nil || now-r.born > age || len(r.young) >= maxRecent {
		r.young, r.elder, r.born = make(map[string]V), r.young, now
	}
	r.young[key] = v
}

func (r *recent[V]) drop(key string) {
	delete(r.young, key)
	delete(r.elder, key)
}
