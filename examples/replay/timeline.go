package main

import "time"

// maxBins is the maximum number of bins in the page: the seconds of an hour. That is more
// than a screen can show, so that one can zoom in.
const maxBins = 3601

// binWidths are the possible widths of a bin, followed by twice the last, four times the
// last and so on.
var binWidths = []time.Duration{
	time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond,
	10 * time.Millisecond, 20 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond,
	time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 15 * time.Second, 30 * time.Second,
	time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 15 * time.Minute, 30 * time.Minute,
	time.Hour, 2 * time.Hour, 3 * time.Hour, 6 * time.Hour, 12 * time.Hour,
	day, 2 * day, 7 * day, 28 * day, 364 * day,
}

// A binning divides the time that a trace covers into bins of one width,
// aligned to the Unix epoch.
type binning struct {
	width time.Duration
	first int64 // the number of the first bin since the epoch
	count int
}

// newBinning chooses the narrowest bins of which there are at most maxBins and that are not
// narrower than the resolution of the log's times.
func newBinning(t *trace) binning {
	from, to := t.requests[0].at, t.requests[len(t.requests)-1].at
	cover := func(width time.Duration) (binning, bool) {
		first, last := floorDiv(from, int64(width)), floorDiv(to, int64(width))
		return binning{width, first, int(last - first + 1)}, last-first < maxBins
	}
	for _, w := range binWidths {
		if w < time.Second && !t.subsecond {
			continue
		}
		if b, ok := cover(w); ok {
			return b
		}
	}
	for w := 2 * binWidths[len(binWidths)-1]; ; w *= 2 {
		if b, ok := cover(w); ok {
			return b
		}
	}
}

// of returns the index of the bin that a time falls into.
func (b binning) of(at int64) int { return int(floorDiv(at, int64(b.width)) - b.first) }

// floorDiv returns a/b rounded down, even if a is negative.
func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// coarser returns the factors by which bins can be merged into wider ones of familiar
// widths. The first factor is 1.
func (b binning) coarser() []int {
	factors := []int{1}
	for _, w := range binWidths {
		if w > b.width && w%b.width == 0 && w/b.width <= maxBins {
			factors = append(factors, int(w/b.width))
		}
	}
	return factors
}

// A timeline counts events by bin: all events, and those that each algorithm denied.
type timeline struct {
	Offered sparse   `json:"offered"`
	Denied  []sparse `json:"denied"` // by algorithm
}

// A sparse is a row of counts, most of which are 0. It has a pair of numbers for each other
// count: the distance to the previous one (for the first, its index), and the count.
type sparse []int64

func newSparse(counts []int64) sparse {
	s := sparse{}
	last := 0
	for i, n := range counts {
		if n != 0 {
			s = append(s, int64(i-last), n)
			last = i
		}
	}
	return s
}

// timelines returns the timeline of all keys, and those of some of them.
func timelines(t *trace, outcomes []*outcome, b binning, keys []int) (all timeline, some []timeline) {
	// Row 0 of counts is for all keys, row 1+i for keys[i].
	row := make([]int32, len(t.keys)) // by key; 0 if it has no row
	for i, key := range keys {
		row[key] = int32(1 + i)
	}
	counts := make([][]int64, 1+len(keys))
	for i := range counts {
		counts[i] = make([]int64, b.count)
	}
	count := func(counted func(i int) bool) []sparse {
		for _, c := range counts {
			clear(c)
		}
		for i, r := range t.requests {
			if !counted(i) {
				continue
			}
			bin := b.of(r.at)
			counts[0][bin] += int64(r.n)
			if own := row[r.key]; own > 0 {
				counts[own][bin] += int64(r.n)
			}
		}
		s := make([]sparse, len(counts))
		for i, c := range counts {
			s[i] = newSparse(c)
		}
		return s
	}

	lines := make([]timeline, len(counts))
	for i, s := range count(func(int) bool { return true }) {
		lines[i].Offered = s
	}
	for _, o := range outcomes {
		for i, s := range count(func(i int) bool { return !o.isAllowed(i) }) {
			lines[i].Denied = append(lines[i].Denied, s)
		}
	}
	return lines[0], lines[1:]
}
