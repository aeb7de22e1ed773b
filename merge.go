package ratelimit

import (
	"math"

	"github.com/ratelimit-go/ratelimit/internal/step"
)

// This file merges the decisions of several keys into one.

// A merger merges the decisions of keys as an All merges the decisions of its parts.
type merger struct {
	Decision
	// Whether the keys spend different numbers of events. Then Limit and Remaining are those of
	// Part.
	varies    bool
	begun     bool // whether a decision was added
	refused   bool // whether a key has refused
	leastLeft int  // what is left of the key that has the least; see left

	// Whether no limit was checked: if a key has refused, for Part, and otherwise for any key.
	unchecked bool
}

// add adds the decision of the i-th key, which was asked for n events.
func (m *merger) add(i int, d *step.Decision, n int) {
	left := m.left(d, n)
	first := !m.begun
	if first {
		m.begun, m.leastLeft, m.Limit, m.Remaining = true, left, d.Limit, d.Remaining
	}
	decides := !m.refused && (first || left < m.leastLeft)
	unchecked := d.Degraded && !d.StandIn
	if !m.refused {
		m.unchecked = m.unchecked || unchecked
	}
	if !d.Allowed && (!m.refused || d.RetryAfter > m.RetryAfter) {
		decides, m.refused, m.RetryAfter, m.unchecked = true, true, d.RetryAfter, unchecked
	}
	if decides {
		m.Part = i
	}
	switch {
	case !m.varies:
		m.Limit, m.Remaining = min(m.Limit, d.Limit), min(m.Remaining, d.Remaining)
	case decides:
		m.Limit, m.Remaining = d.Limit, d.Remaining
	}
	m.leastLeft = min(m.leastLeft, left)
	m.ResetAfter = max(m.ResetAfter, d.ResetAfter)
	m.Delay = max(m.Delay, d.Delay)
	m.Degraded = m.Degraded || d.Degraded
}

// left returns how much a key has left: events or, if the keys spend different numbers of events,
// calls for n events.
func (m *merger) left(d *step.Decision, n int) int {
	switch {
	case !m.varies:
		return d.Remaining
	case n > 0:
		return d.Remaining / n
	}
	return math.MaxInt
}

// decision returns the merged decision.
func (m *merger) decision() Decision {
	d := m.Decision
	d.Allowed = !m.refused
	if m.refused {
		d.Delay = 0
	}
	d.StandIn = d.Degraded && !m.unchecked
	return d
}

// addSaturating returns a+b, or math.MaxInt if that overflows.
func addSaturating(a, b int) int {
	if a > math.MaxInt-b {
		return math.MaxInt
	}
	return a + b
}
