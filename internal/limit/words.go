package limit

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// This file says limits in words, for errors, logs and pages. Each kind of algorithm has a function
// here, which the rows of kinds.go name. Limits that decide differently have different words: an
// error may name two of them. Parameters at their defaults are left out, if the words without them
// are not those of another kind.

// String returns s in words: "10/s, burst 20". It does so for invalid parameters, too.
func (s Spec) String() string {
	if s.Kind != All {
		return kinds[s.Kind].inWords(&s)
	}
	parts := make([]string, len(s.Parts))
	for i, part := range s.Parts {
		parts[i] = part.String()
	}
	return AllInWords(parts)
}

// AllInWords returns an All in words, whose parts in words are these.
func AllInWords(parts []string) string {
	if len(parts) == 1 { // the part without the All is another limit, with other states
		return "all of " + parts[0]
	}
	return strings.Join(parts, ", and ")
}

func tokenBucketInWords(s *Spec) string {
	text := s.rateInWords()
	switch refill := s.Int(3); refill {
	case RefillContinuous:
	case RefillInterval:
		text = comma(s.Int(0)) + " every " + unit(s.Duration(1))
	default:
		text += fmt.Sprintf(", Refill(%d)", refill)
	}
	if burst := s.Int(2); burst != s.Int(0) {
		text += ", burst " + comma(burst)
	}
	return text
}

func leakyBucketInWords(s *Spec) string {
	return s.rateInWords() + ", queue of " + comma(s.Int(2))
}

func fixedWindowInWords(s *Spec) string {
	text := comma(s.Int(0)) + " in each " + unit(s.Duration(1))
	switch start := s.Int(2); start {
	case StartAligned:
	case StartOnFirstEvent:
		text += " from the first event"
	default:
		text += fmt.Sprintf(", Start(%d)", start)
	}
	return text
}

func calendarWindowInWords(s *Spec) string {
	rule := s.rule()
	text := comma(s.Int(0)) + " in each " + rule.Every.String() + " of " + s.Text
	if from := rule.StartInWords(); from != "" {
		text += ", from " + from
	}
	return text
}

func slidingWindowInWords(s *Spec) string {
	text := s.inAnySpan() + ", estimated"
	if segments := s.Int(2); segments != 1 {
		text += " from " + comma(segments) + " segments"
	}
	return text
}

func slidingLogInWords(s *Spec) string {
	text := s.inAnySpan()
	if s.Numbers[2] != 0 {
		text += ", denials count"
	}
	return text
}

func rollingWindowInWords(s *Spec) string {
	period := unit(s.Duration(2))
	text := comma(s.Int(0)) + " per " + unit(s.Duration(1)) + ", recalculated every " + period
	if most := s.Int(3); most != 0 {
		text += ", at most " + comma(most) + " per " + period
	}
	return text
}

// UsualColdFactor is the ColdFactor of a WarmingUp that sets none.
const UsualColdFactor = 3

func warmingUpInWords(s *Spec) string {
	text := s.rateInWords() + ", warm-up " + span(s.Duration(2))
	if factor := s.Float(3); factor != UsualColdFactor {
		text += ", cold factor " + strconv.FormatFloat(factor, 'g', -1, 64)
	}
	return text
}

func inFlightInWords(s *Spec) string {
	return comma(s.Int(0)) + " at once, each for at most " + span(s.Duration(1))
}

func lockoutInWords(s *Spec) string {
	const text = "locked for %s by %s within %s"
	words := fmt.Sprintf(text, span(s.Duration(2)), comma(s.Int(0)), span(s.Duration(1)))
	if most := s.Duration(3); most != 0 {
		words += ", doubling up to " + span(most)
	}
	return words
}

func unlimitedInWords(*Spec) string { return "unlimited" }

func blockedInWords(*Spec) string { return "blocked" }

// rateInWords returns the first two parameters, a rate, as "1,000/m".
func (s *Spec) rateInWords() string { return comma(s.Int(0)) + "/" + abbreviated(s.Duration(1)) }

// inAnySpan returns the first two parameters as "100 in any minute".
func (s *Spec) inAnySpan() string { return comma(s.Int(0)) + " in any " + unit(s.Duration(1)) }

const day = 24 * time.Hour

// units are the spans of time that have names.
var units = []struct {
	span               time.Duration
	name, abbreviation string
}{
	{day, "day", "d"},
	{time.Hour, "hour", "h"},
	{time.Minute, "minute", "m"},
	{time.Second, "second", "s"},
	{time.Millisecond, "millisecond", "ms"},
	{time.Microsecond, "microsecond", "us"},
	{time.Nanosecond, "nanosecond", "ns"},
}

// unit returns "minute" for a minute, and "5m" for five.
func unit(d time.Duration) string {
	for _, u := range units {
		if d == u.span {
			return u.name
		}
	}
	return span(d)
}

// abbreviated returns "m" for a minute, and "5m" for five.
func abbreviated(d time.Duration) string {
	for _, u := range units {
		if d == u.span {
			return u.abbreviation
		}
	}
	return span(d)
}

// span returns "7d" for whole days, and other durations in hours and less, without the units at the
// end that are 0: "36h", "1m30s". ratelimit.ParseRate reads both.
func span(d time.Duration) string {
	if d >= day && d%day == 0 {
		return strconv.FormatInt(int64(d/day), 10) + "d"
	}
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// comma returns a number with commas between thousands.
func comma(n int) string {
	digits, sign := strconv.Itoa(n), ""
	if n < 0 {
		digits, sign = digits[1:], "-"
	}
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return sign + digits
}
