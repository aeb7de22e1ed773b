package httplimit

import "strings"

// How much of Accept is read: enough for every honest client, and so little that a
// hostile one costs nothing to refuse.
const (
	acceptBytes  = 1024
	acceptRanges = 32
)

// takesProblem reports whether a client that sends these Accept fields accepts
// problem+json, and likes it at least as much as plain text.
func takesProblem(accept []string) bool {
	if len(accept) == 0 {
		return true
	}
	var problem, text preference
	for item := range mediaRanges(accept) {
		media, params, _ := strings.Cut(item, ";")
		media = trimBlanks(media)
		problem.consider(rankOf(media, "application/*", "application/json", "application/problem+json"), params)
		text.consider(rankOf(media, "text/*", "text/plain"), params)
	}
	return problem.weight > 0 && problem.weight >= text.weight
}

// mediaRanges iterates over the media ranges within the bounds above. A range that
// the bound cuts in two is left out.
func mediaRanges(accept []string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		left := acceptBytes
		ranges := 0
		for _, line := range accept {
			if len(line) > left {
				line = line[:max(0, strings.LastIndexByte(line[:left+1], ','))]
				left = 0
			}
			left = max(0, left-len(line)-len(","))
			for item := range strings.SplitSeq(line, ",") {
				if ranges++; ranges > acceptRanges || !yield(item) {
					return
				}
			}
		}
	}
}

// A preference is how much a client wants a media type: the weight of the most
// specific media range that matches it (RFC 9110, 12.5.1).
type preference struct {
	rank   int // of that range; 0 if there is none
	weight int // in thousandths
}

// consider records a media range of the given rank and parameters.
func (p *preference) consider(rank int, params string) {
	if rank > p.rank {
		p.rank, p.weight = rank, weightIn(params)
	}
}

// weightIn returns the weight among parameters, in thousandths. A missing or
// malformed weight counts as 1.
func weightIn(params string) int {
	for param := range strings.SplitSeq(params, ";") {
		name, value, _ := strings.Cut(param, "=")
		if strings.EqualFold(trimBlanks(name), "q") {
			return thousandths(trimBlanks(value))
		}
	}
	return 1000
}

// thousandths returns the weight in s, which is from 0 to 1 with at most three
// decimals. A malformed weight counts as 1.
func thousandths(s string) int {
	whole, decimals, _ := strings.Cut(s, ".")
	if whole != "0" || len(decimals) > 3 {
		return 1000
	}
	n := 0
	for i := range 3 {
		n *= 10
		if i < len(decimals) {
			if decimals[i] < '0' || decimals[i] > '9' {
				return 1000
			}
			n += int(decimals[i] - '0')
		}
	}
	return n
}

// rankOf returns how specific a media range is: 1 for */*, 2 and up for the given
// ranges in order, and 0 for any other.
func rankOf(media string, ranges ...string) int {
	if media == "*/*" {
		return 1
	}
	for i, r := range ranges {
		if strings.EqualFold(media, r) {
			return i + 2
		}
	}
	return 0
}

func trimBlanks(s string) string { return strings.Trim(s, " \t") }
