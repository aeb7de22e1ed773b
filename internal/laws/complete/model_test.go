package complete_test

import (
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/model"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

// inModel is the state of a key in internal/model, which answers instead of the arithmetic.
type inModel struct {
	of    *small
	key   *model.Key
	holds map[uint64]*model.Held
	turns map[uint64]*model.Reservation
}

func (s inModel) apply(_ *limit.Limit, req step.Request) (_ stored, changed bool, a step.Answer) {
	s = inModel{s.of, s.key.Clone(), maps.Clone(s.holds), maps.Clone(s.turns)}
	now, id := int64(req.Fixed.Now), req.Hold.ID
	terms := model.Terms{For: req.Hold.For, GiveBack: req.Hold.Back}
	var d ratelimit.Decision
	switch req.Op {
	case step.OpTake:
		if req.UpTo {
			a.Granted, d = s.key.TakeUpTo(now, req.N)
		} else {
			d = s.key.Take(now, req.N)
		}
	case step.OpHold:
		s.holds[id], d = s.key.Hold(now, req.N, terms)
	case step.OpCharge:
		d = s.key.Charge(now, req.N)
	case step.OpReserve:
		var due uint64
		var err error
		if id%2 == 0 {
			due, s.turns[id], err = s.key.Reserve(now, req.N, req.MaxWait)
		} else {
			due, s.holds[id], err = s.key.HoldWithin(now, req.N, terms, req.MaxWait)
		}
		if err == nil {
			a.Wait = time.Duration(due - uint64(now))
		}
		d = s.key.Peek(now)
		d.Allowed, d.RetryAfter, d.Delay = err == nil, 0, 0
	case step.OpSettle:
		switch held := s.holds[id]; {
		case id%2 == 0:
			s.key.Cancel(now, s.turns[id])
		case held == nil: // the key was forgotten
			s.key.Charge(now, req.N-req.Of)
		default:
			s.key.Settle(now, held, req.N)
		}
		d = s.key.Peek(now)
	case step.OpExtend:
		s.key.Extend(now, s.holds[id], s.of.duration(longer))
		d = s.key.Peek(now)
	case step.OpPeek:
		d = s.key.Peek(now)
	}
	a.Decision = step.Decision(d)
	return s, true, a
}

// words says only how many holds and reservations there were, up to two: a model keeps all that has
// happened, so that its states are named by those of the definition.
func (s inModel) words() []uint64 { return []uint64{0, uint64(min(2, len(s.holds)+len(s.turns)))} }

// inChanging is the state of a key in internal/model whose limit changes.
type inChanging struct{ *model.Changing }

func (s inChanging) apply(l *limit.Limit, req step.Request) (_ stored, changed bool, a step.Answer) {
	key, now, alg := s.Clone(), int64(req.Fixed.Now), limit.AlgorithmOf(&l.Spec).(ratelimit.Algorithm)
	var d ratelimit.Decision
	switch req.Op {
	case step.OpTake:
		n := req.N
		if req.UpTo {
			a.Granted = min(n, key.Peek(now, alg).Remaining)
			n = max(1, a.Granted)
		}
		d = key.Take(now, alg, n)
	case step.OpCharge:
		d = key.Charge(now, alg, req.N)
	case step.OpPeek:
		d = key.Peek(now, alg)
	}
	a.Decision, a.Idle = step.Decision(d), horizon // it knows itself when it forgets a limit
	changed = d.Allowed || req.Op == step.OpCharge || key.Limits() != s.Limits()
	return inChanging{key}, changed, a
}

func (s inChanging) words() []uint64 { return []uint64{0, uint64(s.Limits())} }

// TestComplete_Model: internal/model, with which other tests compare large limits, answers as the
// definitions do, in every state of theirs to which any requests lead.
func TestComplete_Model(t *testing.T) {
	budget.Alone(t)
	for name, one := range requestedLimits {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, err := limit.New(one.spec, kernel.InMemory, nil)
			require.NoError(t, err)
			alg := limit.AlgorithmOf(&one.spec).(ratelimit.Algorithm)
			w := requestWalk{T: t, limits: []*limit.Limit{l},
				namer: namer{machine: l.Machine, base: one.base(l.Encoding), small: one.small}, most: 1,
				lasting: one.lasting, fromDue: true}
			states := w.run(inModel{&one.small, model.New(alg, 1), map[uint64]*model.Held{}, map[uint64]*model.Reservation{}})
			t.Logf("complete: %d states, %d answers", states, w.answers)
		})
	}
	for name, one := range changes {
		switch one.definitions[1].(type) {
		case tokenBucket, leakyBucket, intervalBucket, slidingLog:
		default:
			continue // the model does not know how these change
		}
		if name == "another kind" {
			continue // nor this
		}
		t.Run("changing "+name, func(t *testing.T) {
			t.Parallel()
			w, _ := one.walk(t, kernel.InMemory, forms["in words"])
			w.most = 0 // its holds are not walked
			states := w.run(inChanging{model.NewChanging(1)})
			t.Logf("complete: %d states, %d answers", states, w.answers)
		})
	}
}
