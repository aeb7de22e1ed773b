package ratelimit

// normalized returns a leaf with its zero fields replaced by what they stand for.
// Nothing else knows what that is: [New] and [Share] begin with it. What a zero field
// leaves out, as RollingWindow's PeriodLimit, stays left out.
func normalized(alg Algorithm) Algorithm {
	switch a := alg.(type) {
	case TokenBucket:
		if a.Burst == 0 {
			a.Burst = a.Rate.Events
		}
		return a
	case LeakyBucket:
		if a.Capacity == 0 {
			a.Capacity = 1
		}
		return a
	case SlidingWindow:
		if a.Segments == 0 {
			a.Segments = 1
		}
		return a
	case WarmingUp:
		if a.ColdFactor == 0 {
			a.ColdFactor = 3
		}
		return a
	}
	return alg
}
