package main

import (
	"fmt"
	"slices"
)

// A difference says on how many events an algorithm decides otherwise than the reference, which is
// the first of the outcomes.
type difference struct {
	stricter int64 // denied, and allowed by the reference
	laxer    int64 // allowed, and denied by the reference
}

// beside compares the decisions of o with those of the reference.
func (o *outcome) beside(reference *outcome, t *trace) (d difference) {
	for i, r := range t.requests {
		switch {
		case o.denials[i] && !reference.denials[i]:
			d.stricter += int64(r.n)
		case !o.denials[i] && reference.denials[i]:
			d.laxer += int64(r.n)
		}
	}
	return d
}

// inWords describes the difference from the algorithm with that name.
func (d difference) inWords(reference string) string {
	switch {
	case d.laxer == 0:
		return fmt.Sprintf("Denies %s more than the %s.", comma(d.stricter), reference)
	case d.stricter == 0:
		return fmt.Sprintf("Denies %s fewer than the %s.", comma(d.laxer), reference)
	}
	return fmt.Sprintf("Denies %s that the %s allows, and allows %s that it denies.", comma(d.stricter), reference, comma(d.laxer))
}

// twin returns the first outcome that has the decisions of outcomes[i], or nil if no earlier one has.
func twin(outcomes []*outcome, i int) *outcome {
	for _, o := range outcomes[:i] {
		if slices.Equal(o.denials, outcomes[i].denials) {
			return o
		}
	}
	return nil
}

// agreed returns the number of events on which all algorithms decide alike.
func agreed(t *trace, outcomes []*outcome) int64 {
	alike := t.total
	for i, r := range t.requests {
		for _, o := range outcomes[1:] {
			if o.denials[i] != outcomes[0].denials[i] {
				alike -= int64(r.n)
				break
			}
		}
	}
	return alike
}

// verdict says whether it matters which of the algorithms decides, and is empty if there is only one.
func verdict(t *trace, outcomes []*outcome) string {
	if len(outcomes) == 1 {
		return ""
	}
	alike, name := agreed(t, outcomes), outcomes[0].name
	text := fmt.Sprintf("The %d algorithms decide alike on %s of the %ss.", len(outcomes), percent(alike, t.total), t.oneEvent)
	if (t.total-alike)*100 <= t.total {
		return text + " So it hardly matters which of them you choose: take the " + name + "."
	}
	return text + " Where they do not, choose by what you promise to clients; in doubt, take the " + name + "."
}
