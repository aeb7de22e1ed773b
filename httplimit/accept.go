package httplimit

import "strings"

// How much of Accept is read: enough for every client that means it, and so little
// that it costs nothing to refuse one that does not.
const (
	acceptBytes  = 1024
	acceptRanges = 32
)

// takesProblem reports whether a client that accepts these takes a problem in
// JSON, and rather than plain text.
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

// mediaRanges iterates over what is read of Accept. One that is cut is left out.
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

// A preference is how much a client wants something: what the most specific of the
// media ranges says that match it (RFC 9110, 12.5.1).
type preference struct {
	rank   int // of that range; 0 if there is none
	weight int // in thousandths
}

// consider takes account of a media range with these parameters.
func (p *preference) consider(rank int, params string) {
	if rank > p.rank {
		p.rank, p.weight = rank, weightIn(params)
	}
}

// weightIn returns the weight among parameters, in thousandths. It is 1 if there is
// none, or none that RFC 9110 knows.
func weightIn(params string) int {
	for param := range strings.SplitSeq(params, ";") {
		name, value, _ := strings.Cut(param, "=")
		if strings.EqualFold(trimBlanks(name), "q") {
			return thousandths(trimBlanks(value))
		}
	}
	return 1000
}

// thousandths returns the weight in s: from 0 to 1, with three decimals at most.
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

// rankOf returns how specific a media range is: 1 for any, 2 and up for the
// given ones, 0 if it is none of them.
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
