package script

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/uint128"
	"github.com/ratelimit-go/ratelimit/internal/warmup"
)

// This file has the constants of the parts of limits, which each kernel of the scripts reads. Each
// function appends those of a part. The Spec has been compiled, so that its numbers fit.

func (p *Program) bucket(b []byte, s *limit.Spec) []byte {
	rate := s.Rate()
	units, unit, _ := uint128.Ratio(uint64(rate.Per), uint64(rate.Events), uint64(Tick))
	c := cost{units, unit}
	p.costs = append(p.costs, c)
	if p.short {
		p.code = codeOf(c)
	}
	spanTicks, spanUnits := c.times(s.Int(2))
	b = AppendDouble(AppendDouble(appendDoubles(b, unit), spanTicks), spanUnits)
	return AppendDouble(b, float64(p.code))
}

func (p *Program) interval(b []byte, s *limit.Spec) []byte {
	refill := min(s.Numbers[0], 1<<51)
	return appendDoubles(b, s.Numbers[2], refill, ticks(s.Duration(1)))
}

func (p *Program) fixed(b []byte, s *limit.Spec) []byte {
	aligned := byte(0)
	if s.Int(2) == limit.StartAligned {
		aligned = 1
	}
	return append(appendDoubles(b, s.Numbers[0], ticks(s.Duration(1))), aligned)
}

func (p *Program) calendar(b []byte, s *limit.Spec) []byte {
	b = appendDoubles(b, s.Numbers[0])
	dates, _ := s.Calendar()
	p.calendars = append(p.calendars, datedPart{dates, len(b)})
	const borders = 0 // setConstants sets them
	return appendDoubles(b, borders, borders, borders, borders)
}

func (p *Program) sliding(b []byte, s *limit.Spec) []byte {
	return appendRing(b, s.Int(2)+1, s.Duration(1)/s.Duration(2), s.Int(0), 0)
}

func (p *Program) rolling(b []byte, s *limit.Spec) []byte {
	slots := int(s.Duration(1) / s.Duration(2))
	return appendRing(b, slots, s.Duration(2), s.Int(0), s.Int(3))
}

func appendRing(b []byte, slots int, length time.Duration, limit, perSlot int) []byte {
	if perSlot == 0 {
		perSlot = limit
	}
	size := byte(4)
	if uint64(limit) > math.MaxUint32 {
		size = 8
	}
	most := uint64(min(perSlot, limit))
	return append(appendDoubles(b, uint64(slots), ticks(length), uint64(limit), most), size)
}

func (p *Program) log(b []byte, s *limit.Spec) []byte {
	return append(appendDoubles(b, s.Numbers[0], ticks(s.Duration(1))), byte(s.Numbers[2]))
}

func (p *Program) flight(b []byte, s *limit.Spec) []byte {
	const countsDenied = 0
	return append(appendDoubles(b, s.Numbers[0], ticks(s.Duration(1))), countsDenied)
}

func (p *Program) warming(b []byte, s *limit.Spec) []byte {
	c := warmup.New(s.Int(0), s.Duration(1), s.Duration(2), s.Float(3))
	for _, f := range []float64{c.Stable, c.Slope, c.Threshold, c.Stored, c.Cooldown} {
		b = AppendDouble(b, f)
	}
	return b
}

func (p *Program) lockout(b []byte, s *limit.Spec) []byte {
	shortest, longest := s.Duration(2), max(s.Duration(2), s.Duration(3))
	return appendDoubles(b, s.Numbers[0], ticks(s.Duration(1)), ticks(shortest), ticks(longest))
}

func ticks(d time.Duration) uint64 { return uint64(d / Tick) }

func appendDoubles(b []byte, numbers ...uint64) []byte {
	for _, n := range numbers {
		b = AppendDouble(b, float64(n))
	}
	return b
}

func AppendDouble(b []byte, f float64) []byte {
	return binary.LittleEndian.AppendUint64(b, math.Float64bits(f))
}
