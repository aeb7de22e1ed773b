package limit

import (
	"fmt"
	"math"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/param"
)

// Kernel checks the parameters of s, and returns its kernel. Errors name the field as users know it.
func (s *Spec) Kernel(enc kernel.Encoding) (kernel.Kernel, error) {
	switch s.Kind {
	case TokenBucket:
		return s.tokenBucket(enc)
	case LeakyBucket:
		return s.leakyBucket(enc)
	case FixedWindow:
		return s.fixedWindow(enc)
	case SlidingWindow:
		return s.slidingWindow(enc)
	case SlidingLog:
		return s.slidingLog(enc)
	case RollingWindow:
		return s.rollingWindow(enc)
	case WarmingUp:
		return s.warmingUp(enc)
	case InFlight:
		return s.inFlight(enc)
	case Unlimited:
		return kernel.NewUnlimited(), nil
	case Blocked:
		return kernel.NewBlocked(), nil
	}
	parts := make([]kernel.Kernel, len(s.Parts))
	for i := range parts {
		var err error
		if parts[i], err = s.Parts[i].Kernel(enc); err != nil {
			return nil, param.Within(fmt.Sprintf("All[%d]", i), err)
		}
	}
	return kernel.NewAll(parts, enc), nil
}

// The values of TokenBucket's Refill.
const (
	RefillContinuous = iota
	RefillInterval
)

func (s *Spec) tokenBucket(enc kernel.Encoding) (kernel.Kernel, error) {
	rate, burst, refill := s.Rate(), s.Int(2), s.Int(3)
	if err := rate.Check("TokenBucket.Rate"); err != nil {
		return nil, err
	}
	if burst < 1 {
		return nil, param.Invalid("TokenBucket.Burst", burst, "must be at least 1, or 0 for Rate.Events")
	}
	switch refill {
	case RefillContinuous:
		return kernel.NewTokenBucket(rate.Events, rate.Per, rate, burst, enc, "TokenBucket")
	case RefillInterval:
		per, err := enc.Ticks(rate.Per, "TokenBucket.Rate.Per")
		if err == nil {
			err = enc.Count(burst, "TokenBucket.Burst")
		}
		return kernel.NewIntervalBucket(burst, rate.Events, per), err
	}
	return nil, param.Invalid("TokenBucket.Refill", refill, "must be RefillContinuous or RefillInterval")
}

func (s *Spec) leakyBucket(enc kernel.Encoding) (kernel.Kernel, error) {
	rate, capacity := s.Rate(), s.Int(2)
	if err := rate.Check("LeakyBucket.Rate"); err != nil {
		return nil, err
	}
	if capacity < 1 {
		return nil, param.Invalid("LeakyBucket.Capacity", capacity, "must be at least 1, or 0 for 1")
	}
	return kernel.NewLeakyBucket(rate.Events, rate.Per, rate, capacity, enc, "LeakyBucket")
}

// The values of FixedWindow's Start.
const (
	StartAligned = iota
	StartOnFirstEvent
)

// positive returns the first two parameters, a number of events and the time that they count for, and an error
// unless both are positive.
func (s *Spec) positive() (events int, span time.Duration, err error) {
	of, has := kinds[s.Kind].name+".", kinds[s.Kind].has
	events, span = s.Int(0), s.Duration(1)
	switch {
	case events < 1:
		err = param.Invalid(of+has[0].name, events, "must be at least 1")
	case span < 1:
		err = param.Invalid(of+has[1].name, span, "must be at least 1ns")
	}
	return events, span, err
}

// count is positive, with the time in ticks.
func (s *Spec) count(enc kernel.Encoding) (events int, ticks uint64, err error) {
	of, has := kinds[s.Kind].name+".", kinds[s.Kind].has
	events, span, err := s.positive()
	if err == nil {
		err = enc.Count(events, of+has[0].name)
	}
	if err == nil {
		ticks, err = enc.Ticks(span, of+has[1].name)
	}
	return events, ticks, err
}

func (s *Spec) fixedWindow(enc kernel.Encoding) (kernel.Kernel, error) {
	limit, window, err := s.count(enc)
	start := s.Int(2)
	if err == nil && start != StartAligned && start != StartOnFirstEvent {
		err = param.Invalid("FixedWindow.Start", start, "must be StartAligned or StartOnFirstEvent")
	}
	if err != nil {
		return nil, err
	}
	return kernel.NewFixedWindow(limit, window, start == StartAligned, enc), nil
}

func (s *Spec) slidingWindow(enc kernel.Encoding) (kernel.Kernel, error) {
	limit, window, err := s.positive()
	segments := s.Int(2)
	switch {
	case err != nil:
		return nil, err
	case segments < 1:
		return nil, param.Invalid("SlidingWindow.Segments", segments, "must be at least 1, or 0 for 1")
	case segments > kernel.MaxSlots:
		return nil, param.Invalid("SlidingWindow.Segments", segments, fmt.Sprintf("must be at most %d, because each takes memory", kernel.MaxSlots))
	case window%time.Duration(segments) != 0:
		return nil, param.Invalid("SlidingWindow.Segments", segments, fmt.Sprintf("must divide Window, %v, into whole nanoseconds", window))
	}
	length, err := enc.Ticks(window/time.Duration(segments), "SlidingWindow.Window / Segments")
	if err == nil {
		err = enc.Count(limit, "SlidingWindow.Limit")
	}
	if err == nil {
		err = enc.Slots(uint64(segments), "SlidingWindow.Segments")
	}
	if err != nil {
		return nil, err
	}
	return kernel.NewSlidingWindow(limit, uint64(segments), length, enc), nil
}

func (s *Spec) slidingLog(enc kernel.Encoding) (kernel.Kernel, error) {
	limit, window, err := s.count(enc)
	if err != nil {
		return nil, err
	}
	return kernel.NewSlidingLog(limit, window, s.Numbers[2] == 1), nil
}

func (s *Spec) rollingWindow(enc kernel.Encoding) (kernel.Kernel, error) {
	quota, window, err := s.positive()
	period, most := s.Duration(2), s.Int(3)
	switch {
	case err != nil:
		return nil, err
	case period < 1 || window%period != 0:
		return nil, param.Invalid("RollingWindow.Period", period, fmt.Sprintf("must be at least 1ns and divide Window, %v", window))
	case window/period > kernel.MaxSlots:
		return nil, param.Invalid("RollingWindow.Period", period, fmt.Sprintf("must be at least a %dth of Window, %v, because each period takes memory", kernel.MaxSlots, window))
	case most < 0:
		return nil, param.Invalid("RollingWindow.PeriodLimit", most, "must be at least 1, or 0 for no such limit")
	}
	length, err := enc.Ticks(period, "RollingWindow.Period")
	if err == nil {
		_, err = enc.Ticks(window, "RollingWindow.Window") // not too long
	}
	if err == nil {
		err = enc.Count(quota, "RollingWindow.Quota")
	}
	if err == nil {
		err = enc.Slots(uint64(window/period), "RollingWindow.Window / Period")
	}
	if err != nil {
		return nil, err
	}
	return kernel.NewRollingWindow(quota, most, uint64(window/period), length), nil
}

// portableWarmup bounds Warmup in the portable encoding.
const portableWarmup = 30 * 24 * time.Hour

func (s *Spec) warmingUp(enc kernel.Encoding) (kernel.Kernel, error) {
	rate, warmup, factor := s.Rate(), s.Duration(2), s.Float(3)
	if err := rate.Check("WarmingUp.Rate"); err != nil {
		return nil, err
	}
	if warmup < 1 {
		return nil, param.Invalid("WarmingUp.Warmup", warmup, "must be at least 1ns")
	}
	if !(factor >= 1 && factor <= math.MaxInt32) { // false for NaN, too
		return nil, param.Invalid("WarmingUp.ColdFactor", factor, fmt.Sprintf("must be from 1 to %d, or 0 for 3", math.MaxInt32))
	}
	// A request costs less than three times the longer of these, and that in
	// nanoseconds is to be a whole number that a double holds.
	cold := float64(rate.Per) / float64(rate.Events) * factor
	if enc.Portable && max(float64(warmup), cold) > float64(portableWarmup) {
		return nil, param.Invalid("WarmingUp", s, fmt.Sprintf("must warm up within %v in this store, and a cold permit must not take longer", portableWarmup))
	}
	return kernel.NewWarmingUp(rate.Events, rate.Per, warmup, factor, enc), nil
}

func (s *Spec) inFlight(enc kernel.Encoding) (kernel.Kernel, error) {
	if limit, span := s.Int(0), s.Duration(1); limit >= 1 && span < 1 {
		return nil, param.Invalid("InFlight.Timeout", span, "must be at least 1ns, and longer than a request takes")
	}
	limit, timeout, err := s.count(enc)
	if err != nil {
		return nil, err
	}
	return kernel.NewInFlight(limit, timeout), nil
}
