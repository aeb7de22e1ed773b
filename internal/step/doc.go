// Package step applies requests to the state of a key. It defines once, for all algorithms, what a
// request means, and how open holds, turns, limits that change and several parts affect a state.
//
// A [Machine] is a kernel that is ready to apply requests: [Machine.StepFrom] takes the state of a
// key and a [Request], and returns the next state and an [Answer]. The Machine asks the kernel when
// events are granted, and does not know how the kernel computes the answer. Stores keep the states.
//
// The files build on each other, in this order:
//
//   - request.go and machine.go: what a store passes, and what it calls.
//   - step.go, charge.go: requests on the state of one limit, in which nothing is held or reserved.
//     wordstep.go is the same, faster, for states of one word.
//   - all.go: several parts, all of which must grant.
//   - former.go: the state of two limits, after the limit of the key has changed. successor.go:
//     what a state becomes when another limit is asked.
//   - state.go, holds.go, turns.go: states with a list: of open holds, and of turns ahead.
//   - heldstate.go: such a state taken apart. apply.go: requests on it. giveback.go finds
//     RetryAfter while holds give their events back by themselves.
//   - stepfrom.go: all of it together. joint.go: a key as one of several that must all grant.
package step
