package linear_test

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

// A call is one operation of a history.
type call struct {
	op      string // take, each, allow, peek, reset, hold, settle, charge, up to, or advance
	key     string
	n       int
	advance time.Duration
	limit   int // of take, up to and peek: the index of the key's limit at the time of the call
	hold    int // of hold and settle: which one
	during  during
}

// A state is the state of one key in a sequential limiter.
type state struct {
	changed int64 // when
	bytes   string
	holds   holds
}

// sequential returns the definition of a limiter that decides on one call at a time.
//
// A call may have been made at any of several readings of the clock (times_test.go), so that it may
// lead to several states: the definition returns all that go with the result. If there is none, the
// call cannot come next.
func sequential(limits []*limit.Limit, times times) porcupine.Model {
	definition := porcupine.NondeterministicModel{
		Partition: byKey,
		Init:      func() []any { return []any{state{}} },
		Equal: func(a, b any) bool {
			x, y := a.(state), b.(state)
			return x.changed == y.changed && x.bytes == y.bytes && slices.Equal(x.holds, y.holds)
		},
		Step: func(s, input, output any) (next []any) {
			st, c := s.(state), input.(call)
			if c.op == "reset" {
				st.bytes = ""
				return []any{st}
			}
			for _, now := range times.of(c.during, st.changed) {
				if after, ok := st.step(limits[c.limit], c, now, output.(ratelimit.Decision)); ok {
					next = append(next, after)
				}
			}
			return next
		},
		DescribeOperation: describe,
	}
	return definition.ToModel()
}

// byKey returns the calls of each key. No call decides on more than one, and then a history is
// linearizable if that of each key is: whatever orders are found for the keys, an order of all calls
// goes with them.
func byKey(history []porcupine.Operation) [][]porcupine.Operation {
	calls := make(map[string][]porcupine.Operation)
	for _, op := range history {
		key := op.Input.(call).key
		calls[key] = append(calls[key], op)
	}
	return slices.Collect(maps.Values(calls))
}

func describe(input, output any) string { return fmt.Sprintf("%+v → %+v", input, output) }

// step makes a call at a time, and reports whether it has the given result.
func (st state) step(
	limit *limit.Limit,
	c call,
	now int64,
	result ratelimit.Decision,
) (after state, ok bool) {
	req := requestOf(c.op, c.n, c.hold)
	if c.op == "settle" {
		of, granted := st.holds.find(c.hold)
		if !granted {
			return st, result == ratelimit.Decision{}
		}
		req.Of = of
	}
	t, err := limit.Apply([]byte(st.bytes), req.At(time.Unix(0, now)))
	if err != nil {
		return st, false
	}
	if left := string(t.State); st.bytes != left {
		st.changed, st.bytes = now, left
	}
	if c.op == "hold" && t.Answer.Allowed {
		st.holds = st.holds.with(c.hold, c.n)
	}
	return st, returns(c.op, t.Answer, result)
}

// requestOf returns what a call asks of the limit of a key.
func requestOf(op string, n, hold int) step.Request {
	req := step.Request{Op: step.OpTake, N: n}
	switch op {
	case "peek":
		req.Op = step.OpPeek
	case "up to":
		req.UpTo = true
	case "hold":
		req.Op, req.Hold = step.OpHold, handle(hold)
	case "settle":
		req.Op, req.Hold = step.OpSettle, handle(hold)
	case "charge":
		req.Op = step.OpCharge
	}
	return req
}

// handle returns the identity of a hold.
func handle(hold int) step.Handle {
	return step.Handle{ID: uint64(hold) + 1, For: 10 * time.Minute}
}

// returns reports whether a call returns a result if the limit answers this. An Allow returns only
// whether it is granted.
func returns(op string, answer step.Answer, result ratelimit.Decision) bool {
	if op == "allow" {
		return answer.Allowed == result.Allowed
	}
	return ratelimit.Decision(answer.Decision) == result
}

// holds are those that a sequential limiter has granted.
type holds []held

type held struct{ hold, n int }

// with returns the holds and one more of n events.
func (hs holds) with(hold, n int) holds { return append(slices.Clip(hs), held{hold, n}) }

// find returns the number of events of a hold, and whether it was granted.
func (hs holds) find(hold int) (n int, ok bool) {
	for _, h := range hs {
		if h.hold == hold {
			return h.n, true
		}
	}
	return 0, false
}
