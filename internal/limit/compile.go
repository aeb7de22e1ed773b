package limit

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/calendar"
	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/param"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

// This file checks the parameters of algorithms, and makes their kernels. New, and a lookup of
// WithLimits, return the errors.

// Kernel checks the parameters of s, and returns its kernel. Errors name the field as users know
// it.
func (s *Spec) Kernel(enc kernel.Encoding) (kernel.Kernel, error) {
	if err := s.positive(); err != nil {
		return nil, err
	}
	if s.Kind != All {
		return kinds[s.Kind].kernel(s, enc)
	}
	parts := make([]kernel.Kernel, len(s.Parts))
	for i := range parts {
		part, err := s.Parts[i].Kernel(enc)
		if err != nil {
			return nil, param.Within(fmt.Sprintf("All[%d]", i), err)
		}
		parts[i] = part
	}
	return step.NewAll(parts, enc), nil
}

// positive returns an error unless all parameters are at least 1 that must be.
func (s *Spec) positive() error {
	for i, p := range kinds[s.Kind].has {
		if p.least != "" && s.Duration(i) < 1 {
			return param.Invalid(s.field(i), s.value(i), "must be at least "+p.least)
		}
	}
	return nil
}

// count checks the first two parameters, a number of events and the time that they count for, whose
// fields have these names, and returns the time in ticks.
func (s *Spec) count(
	enc kernel.Encoding, limit, lasts string,
) (events int, ticks uint64, err error) {
	ticks, err = enc.Ticks(s.Duration(1), lasts)
	return s.Int(0), ticks, cmp.Or(enc.Count(s.Int(0), limit), err)
}

func (*Spec) unlimited(kernel.Encoding) (kernel.Kernel, error) { return kernel.NewUnlimited(), nil }

func (*Spec) blocked(kernel.Encoding) (kernel.Kernel, error) { return kernel.NewBlocked(), nil }

func (s *Spec) leakyBucket(enc kernel.Encoding) (kernel.Kernel, error) {
	rate := s.Rate()
	return kernel.NewLeakyBucket(rate.Events, rate.Per, rate, s.Int(2), enc, "LeakyBucket")
}

func (s *Spec) slidingLog(enc kernel.Encoding) (kernel.Kernel, error) {
	limit, window, err := s.count(enc, "SlidingLog.Limit", "SlidingLog.Window")
	return kernel.NewSlidingLog(limit, window, s.Numbers[2] == 1), err
}

func (s *Spec) inFlight(enc kernel.Encoding) (kernel.Kernel, error) {
	limit, timeout, err := s.count(enc, "InFlight.Limit", "InFlight.Timeout")
	return kernel.NewInFlight(limit, timeout), err
}

// The values of TokenBucket's Refill.
const (
	RefillContinuous = iota
	RefillInterval
)

func (s *Spec) tokenBucket(enc kernel.Encoding) (kernel.Kernel, error) {
	rate, burst, refill := s.Rate(), s.Int(2), s.Int(3)
	switch refill {
	case RefillContinuous:
		return kernel.NewTokenBucket(rate.Events, rate.Per, rate, burst, enc, "TokenBucket")
	case RefillInterval:
		per, err := enc.Ticks(rate.Per, "TokenBucket.Rate.Per")
		err = cmp.Or(err, enc.Count(burst, "TokenBucket.Burst"))
		return kernel.NewIntervalBucket(burst, rate.Events, per), err
	}
	const must = "must be RefillContinuous or RefillInterval"
	return nil, param.Invalid("TokenBucket.Refill", refill, must)
}

// The values of FixedWindow's Start.
const (
	StartAligned = iota
	StartOnFirstEvent
)

func (s *Spec) fixedWindow(enc kernel.Encoding) (kernel.Kernel, error) {
	limit, window, err := s.count(enc, "FixedWindow.Limit", "FixedWindow.Window")
	start := s.Int(2)
	if err == nil && start != StartAligned && start != StartOnFirstEvent {
		err = param.Invalid("FixedWindow.Start", start, "must be StartAligned or StartOnFirstEvent")
	}
	if err != nil {
		return nil, err
	}
	return kernel.NewFixedWindow(limit, window, start == StartAligned, enc), nil
}

// rule returns the rule of a CalendarWindow, which may be invalid.
func (s *Spec) rule() calendar.Rule {
	return calendar.Rule{Every: calendar.Unit(s.Int(1)), Start: s.Int(2), Hour: s.Int(3)}
}

// Calendar returns the calendar of a CalendarWindow.
func (s *Spec) Calendar() (*calendar.Calendar, error) {
	rule := s.rule()
	if !rule.Every.Valid() {
		const must = "must be Day, Week, Month, Quarter or Year"
		return nil, param.Invalid("CalendarWindow.Every", s.Int(1), must)
	}
	if must := rule.StartError(); must != "" {
		return nil, param.Invalid("CalendarWindow.Start", rule.Start, must)
	}
	if rule.Hour < 0 || rule.Hour > 23 {
		return nil, param.Invalid("CalendarWindow.Hour", rule.Hour, "must be from 0 to 23")
	}
	zone, err := calendar.Zone(s.Text)
	if err != nil {
		const text = "must be the name of a time zone that this program has data of, such as " +
			"Europe/London, or empty for UTC: %v"
		return nil, param.Invalid("CalendarWindow.Zone", strconv.Quote(s.Text), fmt.Sprintf(text, err))
	}
	return calendar.New(rule, zone), nil
}

func (s *Spec) calendarWindow(enc kernel.Encoding) (kernel.Kernel, error) {
	of, err := s.Calendar()
	_, ticks := enc.Ticks(time.Second, "a second of CalendarWindow")
	err = cmp.Or(err, ticks, enc.Count(s.Int(0), "CalendarWindow.Limit"))
	if err != nil {
		return nil, err
	}
	return kernel.NewCalendarWindow(s.Int(0), of, enc), nil
}

func (s *Spec) slidingWindow(enc kernel.Encoding) (kernel.Kernel, error) {
	limit, window, segments := s.Int(0), s.Duration(1), s.Int(2)
	switch {
	case segments > kernel.MaxSlots:
		must := fmt.Sprintf("must be at most %d, because each takes memory", kernel.MaxSlots)
		return nil, param.Invalid("SlidingWindow.Segments", segments, must)
	case window%time.Duration(segments) != 0:
		must := fmt.Sprintf("must divide Window, %v, into whole nanoseconds", window)
		return nil, param.Invalid("SlidingWindow.Segments", segments, must)
	}
	length, err := enc.Ticks(window/time.Duration(segments), "SlidingWindow.Window / Segments")
	err = cmp.Or(err,
		enc.Count(limit, "SlidingWindow.Limit"),
		enc.Slots(uint64(segments), "SlidingWindow.Segments"))
	if err != nil {
		return nil, err
	}
	return kernel.NewSlidingWindow(limit, uint64(segments), length, enc), nil
}

func (s *Spec) rollingWindow(enc kernel.Encoding) (kernel.Kernel, error) {
	quota, window, period, most := s.Int(0), s.Duration(1), s.Duration(2), s.Int(3)
	switch {
	case period < 1 || window%period != 0:
		must := fmt.Sprintf("must be at least 1ns and divide Window, %v", window)
		return nil, param.Invalid("RollingWindow.Period", period, must)
	case window/period > kernel.MaxSlots:
		const text = "must be at least a %dth of Window, %v, because each period takes memory"
		must := fmt.Sprintf(text, kernel.MaxSlots, window)
		return nil, param.Invalid("RollingWindow.Period", period, must)
	case most < 0:
		const must = "must be at least 1, or 0 for no such limit"
		return nil, param.Invalid("RollingWindow.PeriodLimit", most, must)
	}
	periods := uint64(window / period)
	length, err := enc.Ticks(period, "RollingWindow.Period")
	_, long := enc.Ticks(window, "RollingWindow.Window")
	err = cmp.Or(err, long,
		enc.Count(quota, "RollingWindow.Quota"),
		enc.Slots(periods, "RollingWindow.Window / Period"))
	if err != nil {
		return nil, err
	}
	return kernel.NewRollingWindow(quota, most, periods, length), nil
}

func (s *Spec) lockout(enc kernel.Encoding) (kernel.Kernel, error) {
	shortest, longest := s.Duration(2), s.Duration(3)
	if longest != 0 && longest < shortest {
		must := fmt.Sprintf("must be at least First, %v, or 0 if no lock is longer than that", shortest)
		return nil, param.Invalid("Lockout.Longest", longest, must)
	}
	limit, window, err := s.count(enc, "Lockout.Limit", "Lockout.Window")
	first, wrong := enc.Ticks(shortest, "Lockout.First")
	most, alsoWrong := enc.Ticks(max(shortest, longest), "Lockout.Longest")
	err = cmp.Or(err, wrong, alsoWrong)
	if err != nil {
		return nil, err
	}
	return kernel.NewLockout(limit, window, first, most), nil
}

// portableWarmup bounds Warmup in the portable encoding.
const portableWarmup = 30 * 24 * time.Hour

func (s *Spec) warmingUp(enc kernel.Encoding) (kernel.Kernel, error) {
	rate, warmup, factor := s.Rate(), s.Duration(2), s.Float(3)
	if !(factor >= 1 && factor <= math.MaxInt32) { // false for NaN, too
		must := fmt.Sprintf("must be from 1 to %d, or 0 for 3", math.MaxInt32)
		return nil, param.Invalid("WarmingUp.ColdFactor", factor, must)
	}
	// A request costs less than three times the longer of these, and that in
	// nanoseconds is to be a whole number that a double holds.
	cold := float64(rate.Per) / float64(rate.Events) * factor
	if enc.Portable && max(float64(warmup), cold) > float64(portableWarmup) {
		const text = "must warm up within %v in this store, and a cold permit must not take longer"
		return nil, param.Invalid("WarmingUp", s, fmt.Sprintf(text, portableWarmup))
	}
	return kernel.NewWarmingUp(rate.Events, rate.Per, warmup, factor, enc), nil
}
