package fakeredis

import "strings"

// A script is what the server knows of one, whose text it does not run.
type script struct {
	does  task
	holds bool // whether it knows open holds and turns ahead
}

// A task is what a script is for.
type task int

const (
	unknown        task = iota
	reads               // replies with a value
	readsWithTime       // likewise, behind the time
	replaces            // replaces a value that a process has computed from
	decides             // decides requests on one key (lua/take.lua, lua/main.lua)
	decidesJointly      // decides a request on several keys (lua/joint.lua)
)

// scriptOf recognizes a script of package redisstore by what its text must contain.
func scriptOf(text string) script {
	has := func(code string) bool { return strings.Contains(text, code) }
	switch {
	case !has("'GET'") && !has("'GETRANGE'"):
		return script{unknown, false}
	case !has("'PSETEX'") && !has("'TIME'"):
		return script{reads, false}
	case !has("'PSETEX'"):
		return script{readsWithTime, false}
	case has("if value ~= ARGV[1] then"):
		return script{replaces, false}
	}
	refuses := has("pack('<dB', now, 4)") // values with open holds
	holds := has("local turns")
	switch {
	case refuses == holds: // the scripts have changed, so that these lines must be others
		return script{unknown, false}
	case has("for k = 1, #KEYS do"):
		return script{decidesJointly, holds}
	}
	return script{decides, holds}
}
