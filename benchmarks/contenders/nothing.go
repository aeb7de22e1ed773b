package contenders

// nothing answers without looking: what is measured of it is the harness. It
// has no limiter to make; see [Always].
func nothing() Contender {
	return Contender{
		Name:  "(no limiter)",
		Role:  Floor,
		Setup: "answers without looking: what the harness itself costs",
		New:   nil,
	}
}

// Always returns an Allow that always says a.
func Always(a Answer) Allow {
	return func(string) Answer { return a }
}
