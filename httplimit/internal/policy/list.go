// Package policy has what clients are told of limits: their names, quotas and times, as header
// fields and as the body of a refusal.
package policy

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// A List describes the limits of a limiter, or of several. Each part of an All is one.
type List struct {
	Names []string // of the parts, by number

	Field  string // the value of RateLimit-Policy; empty if there is none
	Field7 string // the same, as in draft-ietf-httpapi-ratelimit-headers-07

	items7 []string // the items of Field7
	used   []string // the names, and those of periods
	items  []string // the names as items of a structured field, in quotes
	// Of the parts, by number; zero if not known, and without a window if there are two.
	quotas []Quota

	starts  []int // the numbers of the first parts of several limiters; nil with one
	problem problem
}

// New describes alg, if it is not nil. status is that of a refusal.
func New(name string, status int, alg ratelimit.Algorithm) *List {
	parts := partsOf(alg)
	l := new(List)
	for i, part := range parts {
		partName := name
		if len(parts) > 1 {
			partName = fmt.Sprintf("%s-%d", name, i+1)
		}
		item := quoted(partName)
		l.Names, l.used = append(l.Names, partName), append(l.used, partName)
		l.items = append(l.items, item)
		of := quotas(part)
		for j, q := range of {
			if l.Field != "" {
				l.Field += ", "
			}
			if j > 0 {
				period := partName + "-period"
				l.used, item = append(l.used, period), quoted(period)
			}
			l.Field += fmt.Sprintf("%s;q=%d", item, min(int64(q.events), maxInteger))
			if q.Flies {
				l.Field += `;qu="concurrent-requests"`
			} else if q.window >= time.Second && q.window < ratelimit.Never {
				l.Field += fmt.Sprintf(";w=%d", Seconds(q.window))
				item7 := fmt.Sprintf("%d;w=%d", min(int64(q.events), maxInteger), Seconds(q.window))
				l.items7 = append(l.items7, item7)
			}
		}
		switch len(of) {
		case 0:
			of = []Quota{{}}
		case 2: // nobody knows which of them a decision is about
			of[0].window, of[0].most = 0, min(of[0].most, of[1].most)
		}
		l.quotas = append(l.quotas, of[0])
	}
	l.Field7 = joined7(l.items7)
	l.problem = newProblem(status, l.Names)
	return l
}

// Combined returns the Lists of several limiters as one.
func Combined(all []*List) *List {
	if len(all) == 1 {
		return all[0]
	}
	l := &List{problem: problem{before: all[0].problem.before}}
	var fields []string
	for _, one := range all {
		l.starts = append(l.starts, len(l.Names))
		l.Names = append(l.Names, one.Names...)
		l.used = append(l.used, one.used...)
		l.items = append(l.items, one.items...)
		l.quotas = append(l.quotas, one.quotas...)
		l.problem.after = append(l.problem.after, one.problem.after...)
		if one.Field != "" {
			fields = append(fields, one.Field)
		}
		l.items7 = append(l.items7, one.items7...)
	}
	l.Field, l.Field7 = strings.Join(fields, ", "), joined7(l.items7)
	return l
}

// Part returns the number of the part that decided d.
func (l *List) Part(d ratelimit.Decision) int { return min(max(d.Part, 0), len(l.Names)-1) }

// PartsOf returns the number of the first part of the limiter that decided d, whose Part is its
// index, and the number after its last one. With one limiter, ok is false, and d has the part.
func (l *List) PartsOf(d ratelimit.Decision) (first, end int, ok bool) {
	if l.starts == nil {
		return d.Part, d.Part + 1, false
	}
	first, end = l.starts[d.Part], len(l.Names)
	if d.Part+1 < len(l.starts) {
		end = l.starts[d.Part+1]
	}
	return first, end, true
}

// Quota returns that of the part that decided d.
func (l *List) Quota(d ratelimit.Decision) *Quota { return &l.quotas[l.Part(d)] }

// Locks reports whether a part is a Lockout.
func (l *List) Locks() bool {
	return slices.ContainsFunc(l.quotas, func(q Quota) bool { return q.Locks() })
}

// Twice returns a name that two limits have, so that a client could not tell them apart, or "".
func (l *List) Twice() string {
	for i, name := range l.used {
		if slices.Contains(l.used[:i], name) {
			return name
		}
	}
	return ""
}

// uses reports whether a part, or a period of one, has the name.
func (l *List) uses(name string) bool { return slices.Contains(l.used, name) }

// SharesName reports whether the two have the name of a part, or of a period, in common.
func (l *List) SharesName(other *List) bool { return slices.ContainsFunc(l.used, other.uses) }

// joined7 returns a list of items, without those whose number is that of an earlier one.
func joined7(items []string) string {
	var kept []string
	seen := make(map[string]bool)
	for _, item := range items {
		if q, _, _ := strings.Cut(item, ";"); !seen[q] {
			seen[q], kept = true, append(kept, item)
		}
	}
	return strings.Join(kept, ", ")
}

// maxInteger is the greatest integer of a structured field (RFC 9651, 3.3.1).
const maxInteger = 999_999_999_999_999

// quoted returns s as a string of a structured field.
func quoted(s string) string {
	q := []byte{'"'}
	for i := range len(s) {
		if s[i] == '"' || s[i] == '\\' {
			q = append(q, '\\')
		}
		q = append(q, s[i])
	}
	return string(append(q, '"'))
}
