package fakes

import (
	"fmt"
	"runtime"
)

// HeapOf returns how many bytes f adds to the heap.
func HeapOf(f func()) float64 {
	read := func() float64 {
		runtime.GC()
		runtime.GC() // a second time, because a sync.Pool keeps its values for one collection
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc)
	}
	before := read()
	f()
	return read() - before
}

// Names returns n short keys.
func Names(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprint("key ", i)
	}
	return all
}
