package rules

import (
	"container/list"
	"time"
)

// Keys that the store has no limit for cost a client nothing: whoever sends requests makes up as
// many as they like. So the lookups of keys that are known to have a limit, and those of all
// others, wait in two lines, which take turns. The others leave the last slot to known keys, if
// there are two or more.

// A share is what the lookups of one kind of keys have of the slots. Cache.mu protects it.
type share struct {
	most      int       // slots at once
	line      list.List // of *flight that wait for a slot, the first one in front
	running   int       // lookups that have a slot, including those past their deadline
	latest    time.Time // the deadline of the lookup that got a slot last
	refreshes int       // flights that were begun in the background
}

// isOverdue reports whether all running lookups have missed their deadlines. They have started in
// the order of these, so that the last one to start has the latest.
func (s *share) isOverdue(now time.Time) bool {
	return s.running == 0 || !now.Before(s.latest)
}

// hasSlotLocked reports whether a lookup of a share may start.
func (c *Cache) hasSlotLocked(s *share) bool {
	return s.running < s.most && c.customers.running+c.strangers.running < c.most
}

// hangsLocked reports whether all slots that a lookup of s waits for are taken by lookups that have
// missed their deadlines.
func (c *Cache) hangsLocked(s *share, now time.Time) bool {
	switch {
	case c.hasSlotLocked(s):
		return false
	case s.running == s.most:
		return s.isOverdue(now)
	}
	return c.customers.isOverdue(now) && c.strangers.isOverdue(now)
}

// startLocked gives free slots to the lookups that wait.
func (c *Cache) startLocked() {
	for {
		next, other := &c.customers, &c.strangers
		if c.turn == next {
			next, other = other, next
		}
		if !c.startFirstLocked(next) && !c.startFirstLocked(other) {
			return
		}
	}
}

// startFirstLocked starts the first lookup in the line of s, and reports whether there is one and a
// slot for it.
func (c *Cache) startFirstLocked(s *share) bool {
	first := s.line.Front()
	if first == nil || !c.hasSlotLocked(s) {
		return false
	}
	f := s.line.Remove(first).(*flight)
	f.started = true
	s.running++
	s.latest = f.deadline
	c.turn = s
	close(f.turn)
	return true
}
