package main

import (
	"fmt"
	"sort"
)

// mostSuggesting is about how many requests are replayed to find a limit. Of a longer log, those of
// some keys are.
const mostSuggesting = 1_000_000

// suggest says with which limits an algorithm would deny at most one of a hundred requests, and deny
// anything to at most one of a hundred keys. It says nothing of an algorithm that denies more with
// each limit, because it spaces requests.
func suggest(t *trace, l limit, id, name string) (string, error) {
	part := t.someKeys(mostSuggesting)
	most := make([]int64, len(part.keys)) // events of each key
	busiest := int64(1)
	for _, r := range part.requests {
		most[r.key] += int64(r.n)
		busiest = max(busiest, most[r.key])
	}
	isKnown := true
	lowest := func(isFew func(*outcome) bool) (limit, error) {
		var failed error
		n := sort.Search(int(busiest), func(i int) bool {
			cs, err := l.of(i + 1).candidates(id)
			if err != nil || failed != nil {
				failed = err
				return true
			}
			o, err := replayOne(part, cs[0])
			if err != nil {
				failed = err
				return true
			}
			return isFew(o)
		})
		isKnown = isKnown && n < int(busiest)
		return l.of(n + 1), failed
	}
	ofRequests, err := lowest(func(o *outcome) bool { return o.denied*100 <= part.total })
	if err != nil {
		return "", err
	}
	ofKeys, err := lowest(func(o *outcome) bool { return o.limited*100 <= len(part.keys) })
	if err != nil || !isKnown {
		return "", err
	}
	text := fmt.Sprintf("A %s of %s would deny at most 1 %% of the %ss, and one of %s anything to at most 1 %% of the %ss",
		name, ofRequests.short(), t.oneEvent, ofKeys.short(), t.oneKey)
	if len(part.requests) < len(t.requests) {
		text += fmt.Sprintf(" (found with %s of the %ss)", percent(int64(len(part.keys)), int64(len(t.keys))), t.oneKey)
	}
	return text + ".", nil
}

// of returns the limit with another number of events. The burst changes in proportion.
func (l limit) of(events int) limit {
	l.burst = max(1, int(float64(l.burst)*float64(events)/float64(l.rate.Events)))
	l.rate.Events = events
	if l.hasCalendar() {
		l.calendar.Limit = events
	}
	return l
}

// short returns the limit as -limit has it.
func (l limit) short() string {
	if l.hasCalendar() {
		return fmt.Sprintf("%d/%v", l.rate.Events, l.calendar.Every)
	}
	return l.rate.String()
}

// someKeys returns t or, if that has more requests, the requests of about as many keys as have most
// requests.
func (t *trace) someKeys(most int) *trace {
	every := int32((len(t.requests) + most - 1) / most)
	if every <= 1 {
		return t
	}
	part := *t
	part.keys, part.requests, part.total = nil, nil, 0
	for i := 0; i < len(t.keys); i += int(every) {
		part.keys = append(part.keys, t.keys[i])
	}
	for _, r := range t.requests {
		if r.key%every == 0 {
			r.key /= every
			part.requests = append(part.requests, r)
			part.total += int64(r.n)
		}
	}
	return &part
}
