// Package byname has a map from names to values that is read for each decision and changed rarely.
package byname

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

// A Map has values by name. Values are added and never removed. Reading takes no lock. The zero
// Map is empty. It must not be copied.
type Map[V any] struct {
	mu  sync.Mutex // held while now is replaced
	now atomic.Pointer[content[V]]
}

// A content is never changed, only replaced.
type content[V any] struct {
	byName map[string]*V
	order  []*V // as they were added
}

func (m *Map[V]) load() content[V] {
	if c := m.now.Load(); c != nil {
		return *c
	}
	return content[V]{}
}

// GetOrAdd returns the value of name. If there is none, it adds the one that newValue returns, or
// returns nil if m has most values already. To add one takes time proportional to their number.
func (m *Map[V]) GetOrAdd(name string, most int, newValue func() *V) *V {
	c := m.load()
	if v := c.byName[name]; v != nil || len(c.order) >= most {
		return v
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	c = m.load()
	if v := c.byName[name]; v != nil || len(c.order) >= most { // another goroutine was faster
		return v
	}
	v := newValue()
	byName := map[string]*V{name: v}
	maps.Copy(byName, c.byName)
	m.now.Store(&content[V]{byName, append(slices.Clone(c.order), v)})
	return v
}

// All returns the values in the order in which they were added. The slice must not be changed.
func (m *Map[V]) All() []*V { return m.load().order }
