package model

// plan is ratelimit.Unlimited, or ratelimit.Blocked if max is 0.
type plan struct {
	max   int
	count int // of charges, which have no effect
}

// unlimited reports whether p never refuses anything, not even while a reservation of the
// other parts is ahead.
func unlimited(p part) bool {
	plan, ok := p.(*plan)
	return ok && plan.max > 0
}

func (p *plan) limit() int { return p.max }

func (p *plan) grantable(_ instant, n int) bool { return n <= p.max }

func (p *plan) forgotten(instant) bool { return true }

func (p *plan) earliest(t instant) instant { return t }

func (p *plan) charge(instant, int) { p.count++ }

func (p *plan) charges() int { return p.count }

func (p *plan) settle(int, int) {}

func (p *plan) clone() part {
	c := *p
	return &c
}
