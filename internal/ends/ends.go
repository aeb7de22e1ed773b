// Package ends makes options of Hold, and options of Reserve, of those that say how a hold ends: a
// slice of interfaces is not one of others, even if each element is.
package ends

import "github.com/ratelimit-go/ratelimit"

// OfHold returns first, and then ends, as options of Hold.
func OfHold(ends []ratelimit.EndOption, first ...ratelimit.HoldOption) []ratelimit.HoldOption {
	for _, end := range ends {
		first = append(first, end)
	}
	return first
}

// OfReserve returns first, and then ends, as options of Reserve.
func OfReserve(
	ends []ratelimit.EndOption,
	first ...ratelimit.ReserveOption,
) []ratelimit.ReserveOption {
	for _, end := range ends {
		first = append(first, end)
	}
	return first
}
