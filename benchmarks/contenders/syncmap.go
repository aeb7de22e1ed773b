package contenders

import "sync"

// A syncMap is the usual way to limit many keys with a library that has no keys: a sync.Map
// with a limiter for each key, made when the key is new.
type syncMap[V any] struct {
	limiters sync.Map // of V by key
	fresh    func() V
}

func newSyncMap[V any](fresh func() V) *syncMap[V] {
	return &syncMap[V]{fresh: fresh}
}

func (m *syncMap[V]) get(key string) V {
	v, ok := m.limiters.Load(key)
	if !ok {
		v, _ = m.limiters.LoadOrStore(key, m.fresh())
	}
	return v.(V)
}
