package limitpage

import (
	"cmp"
	"slices"

	"github.com/ratelimit-go/ratelimit/observe"
)

// This file chooses the keys that a report has. A page shows few of the keys that many limiters
// list, and fetches a report each second.

// keyLists are the lists of a limiter, each with the greatest count first.
type keyLists struct {
	denied, used []observe.TopKey
	deniedBy     int // the part that denied the keys most, also those that are left out
}

// listsOf returns the lists of limiters. Those of one kind have the most keys with the greatest
// counts, of all limiters together.
func listsOf(limiters []limiterSnapshot, most int) []keyLists {
	lists := make([]keyLists, len(limiters))
	denied, used := make([]*[]observe.TopKey, len(lists)), make([]*[]observe.TopKey, len(lists))
	for i, w := range limiters {
		l := &lists[i]
		l.denied, l.used = w.denied.Top(mostListed), w.used.Top(mostListed)
		l.deniedBy = partOfMost(l.denied)
		denied[i], used[i] = &l.denied, &l.used
	}
	shorten(denied, most)
	shorten(used, most)
	return lists
}

// partOfMost returns the part that has denied keys most, and -1 if there are no keys.
func partOfMost(keys []observe.TopKey) (part int) {
	counts, part := make(map[int]float64), -1
	for _, k := range keys {
		counts[k.Part] += k.Count
		if counts[k.Part] > counts[part] {
			part = k.Part
		}
	}
	return part
}

// shorten leaves the most keys with the greatest counts in lists.
func shorten(lists []*[]observe.TopKey, most int) {
	var counts []float64
	for _, l := range lists {
		for _, k := range *l {
			counts = append(counts, k.Count)
		}
	}
	if len(counts) <= most {
		return
	}
	slices.SortFunc(counts, func(a, b float64) int { return -cmp.Compare(a, b) })
	least := counts[most] // keys with this count fit in part, or not at all
	ties := most - slices.Index(counts, least)
	for _, l := range lists {
		isOut := func(k observe.TopKey) bool {
			if k.Count == least {
				ties--
			}
			return k.Count < least || k.Count == least && ties < 0
		}
		if i := slices.IndexFunc(*l, isOut); i >= 0 {
			*l = (*l)[:i]
		}
	}
}
