package main

import "time"

// A kind of faults: what it does, and what docs/redis.md says of it.
type kind struct {
	name    string
	longest time.Duration // that one lasts, or 0 if it is over at once
	by      time.Duration // how far a clock jumps, or how late commands arrive, at most
	begin   func(f *fleet, of *fault)
	end     func(f *fleet, of *fault) // or nil

	promise string
	// beyond returns how many events the store may grant beyond the limit, in time: an event is
	// tokenTime.
	beyond func(of *fault) time.Duration
	behind bool // whether the clock of the server is behind afterwards
	fails  bool // whether requests may fail
}

var kinds = []*kind{
	{
		name: "replies lost", longest: 4 * time.Second, fails: true,
		begin:   func(f *fleet, of *fault) { f.server.hinder(of.share, 0, 0) },
		end:     func(f *fleet, of *fault) { f.server.hinder(0, 0, 0) },
		promise: "no event beyond the limit by the store; those of a failed request may be spent, once",
	}, {
		name: "answers late", longest: 4 * time.Second, by: time.Second, fails: true,
		begin:   func(f *fleet, of *fault) { f.server.hinder(0, of.share, of.by) },
		end:     func(f *fleet, of *fault) { f.server.hinder(0, 0, 0) },
		promise: "no event beyond the limit by the store; those of a failed request may be spent, once",
	}, {
		name: "restart with data", longest: 2 * time.Second, fails: true,
		begin:   func(f *fleet, of *fault) { f.server.stop() },
		end:     func(f *fleet, of *fault) { f.server.start(f.server.values()) },
		promise: "no event beyond the limit by the store",
	}, {
		name: "restart without data", longest: 2 * time.Second, fails: true,
		begin:   func(f *fleet, of *fault) { f.server.stop() },
		end:     func(f *fleet, of *fault) { f.server.start(nil) },
		promise: "a burst, once: the key gets its whole limit again",
		beyond:  func(*fault) time.Duration { return burst * tokenTime },
	}, {
		name: "a replica takes over", longest: 2 * time.Second, fails: true,
		begin:   func(f *fleet, of *fault) { f.server.stop() },
		end:     takeOver,
		promise: "events that had not reached the replica may be granted again",
		beyond:  unreplicated,
	}, {
		name: "a replica takes over, its clock ahead", longest: 2 * time.Second, by: time.Second,
		fails:   true,
		begin:   func(f *fleet, of *fault) { f.server.stop() },
		end:     func(f *fleet, of *fault) { takeOver(f, of); f.server.skew(of.by) },
		promise: "events that had not reached the replica, and those of the difference of the clocks",
		beyond:  func(of *fault) time.Duration { return unreplicated(of) + of.by },
	}, {
		name: "a replica takes over, its clock behind", longest: 2 * time.Second, by: time.Second,
		fails: true, behind: true,
		begin:   func(f *fleet, of *fault) { f.server.stop() },
		end:     func(f *fleet, of *fault) { takeOver(f, of); f.server.skew(-of.by) },
		promise: "events that had not reached the replica; the key may wait for the difference, once",
		beyond:  unreplicated,
	}, {
		name: "a process is killed", longest: 2 * time.Second,
		begin:   func(f *fleet, of *fault) { f.kill(of.slot) },
		end:     func(f *fleet, of *fault) { f.deploy(of.slot) },
		promise: "no event beyond the limit, and no failure; its open holds count as used",
	}, {
		name: "all processes are deployed",
		begin: func(f *fleet, of *fault) {
			for slot := range f.processes {
				f.deploy(slot)
			}
		},
		promise: "no event beyond the limit, and no failure",
	}, {
		name: "a process's clock jumps ahead", by: time.Hour,
		begin:   func(f *fleet, of *fault) { f.processes[of.slot].clock.jump(of.by) },
		promise: "nothing: Redis decides by its own clock",
	}, {
		name: "a process's clock jumps back", by: time.Hour,
		begin:   func(f *fleet, of *fault) { f.processes[of.slot].clock.jump(-of.by) },
		promise: "nothing: Redis decides by its own clock",
	},
}

// takeOver starts the replica, and notes which events it lacks.
func takeOver(f *fleet, of *fault) {
	synced := f.start.Add(of.begins - of.lag)
	f.server.start(f.server.valuesAt(synced))
	for _, r := range f.plan.requests {
		isDenied := !r.answered.IsZero() && !r.decision.Degraded && !r.decision.Allowed
		if r.executed.After(synced) && r.executed.Before(f.start.Add(of.ends)) && !isDenied {
			of.unreplicated += r.n
		}
	}
}

func unreplicated(of *fault) time.Duration { return time.Duration(of.unreplicated) * tokenTime }

func kindNames() (names []string) {
	for _, k := range kinds {
		names = append(names, k.name)
	}
	return names
}

// kindNamed returns the kind with a name, or nil.
func kindNamed(name string) *kind {
	for _, k := range kinds {
		if k.name == name {
			return k
		}
	}
	return nil
}
