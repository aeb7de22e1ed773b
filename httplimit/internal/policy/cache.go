package policy

import (
	"reflect"
	"sync"
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit"
)

// A Cache has the Lists of algorithms.
type Cache struct {
	known sync.Map // of *List, by cacheKey
	count atomic.Int64
}

// MostCached is the number of Lists after which a Cache starts over.
const MostCached = 1024

// Of returns the List of alg.
func (c *Cache) Of(name string, status int, alg ratelimit.Algorithm) *List {
	key, ok := cacheKey(alg)
	if !ok {
		return New(name, status, alg)
	}
	if p, ok := c.known.Load(key); ok {
		return p.(*List)
	}
	p := New(name, status, alg)
	if c.count.Add(1) > MostCached {
		c.known.Clear()
		c.count.Store(1)
	}
	c.known.Store(key, p)
	return p
}

// cacheKey returns a comparable value that stands for alg. An All of more than four parts, or
// with another All in it, has none.
func cacheKey(alg ratelimit.Algorithm) (key any, ok bool) {
	if all, isAll := alg.(ratelimit.All); isAll {
		var parts [4]ratelimit.Algorithm
		if copy(parts[:], all) < len(all) {
			return nil, false
		}
		key = parts
	} else {
		key = alg
	}
	return key, reflect.ValueOf(key).Comparable()
}
