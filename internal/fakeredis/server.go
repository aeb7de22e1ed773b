// Package fakeredis has a Redis server for the tests of package redisstore. The server runs in the
// process of the test and uses the clock of the test. The test can slow it down, stop it and make
// it fail. Package integration/redis makes the same calls to a store on this server and to a store
// on a real one, and compares all answers and all values. Only tests import fakeredis.
package fakeredis

import (
	"context"
	"crypto/sha1" // by which Redis knows scripts
	"encoding/hex"
	"errors"
	"strconv"
	"sync"
	"time"
)

// tick is the unit of Redis's clock.
const tick = time.Microsecond

// A Server answers the commands of a redisstore.Store as Redis does, one after another. It does not
// run the scripts, which integration/redis tests on real servers: it decides by the kernels, from
// the arguments of a script. So it serves to test everything around a call.
//
// A store gives the same answers as on Redis, and stores the same values. These differ:
//   - Values do not expire.
//   - A reply has the whole value of a key. A script tells only what the decisions depend on.
//   - The server decides on requests that the scripts leave to the process, because they are rare
//     while holds are open or turns ahead. It leaves to the process only requests of which a script
//     does not say enough.
//   - If several keys are denied together, a script writes the log of a key of no events again,
//     without what is over, if the log counts denials. The server leaves the log alone.
//
// A test sets the fields before the calls that they concern, or within Set.
type Server struct {
	Skew  time.Duration // by how much its clock is ahead
	Delay time.Duration // the round-trip time

	Values   map[string]string // by key
	Fail     error             // the error to reply with
	Failures int               // how many times to reply with it; no limit if it was negative
	Hangs    bool              // whether it does not reply
	Stuck    chan struct{}     // if not nil, calls that hang return when it is closed
	Hanging  string            // the hash or text of a script that is not answered
	Meddle   func()            // if not nil, is called before each command is executed

	Trips    int   // commands received
	Together []int // the numbers of commands received together
	Evals    int   // scripts received in full
	Batches  []int // the number of requests in each script call that was executed
	Replaced int   // values that a process has computed

	mu      sync.Mutex        // held while a command is executed
	scripts map[string]script // those that the server knows, by their hashes
	limits  limits
}

// New returns a server that knows no scripts and has no values.
func New() *Server {
	return &Server{Failures: -1, Values: map[string]string{}, scripts: map[string]script{}}
}

// Load makes the server know a script, as SCRIPT LOAD does.
func (s *Server) Load(text string) {
	sum := sha1.Sum([]byte(text))
	s.scripts[hex.EncodeToString(sum[:])] = scriptOf(text)
}

// Flush makes the server know no scripts, as SCRIPT FLUSH does.
func (s *Server) Flush() { clear(s.scripts) }

// Set calls change while no command is executed.
func (s *Server) Set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// Damage makes all values unreadable.
func (s *Server) Damage() {
	for key := range s.Values {
		s.Values[key] = "damaged"
	}
}

// Calls returns the number of script calls that the server has executed.
func (s *Server) Calls() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.Batches)
}

func (s *Server) String() string {
	return "fake server, asked " + strconv.Itoa(s.Calls()) + " times"
}

// A Command is a command of a client. Words[Key] is its first key.
type Command struct {
	Words []string
	Key   int
}

// A Reply is the reply to a command, or says why there is none.
type Reply struct {
	Text string
	Err  error
}

// Do sends commands in one round trip, and returns the replies to them. Commands behind one that
// is not answered are not executed.
func (s *Server) Do(ctx context.Context, commands []Command) []Reply {
	replies := make([]Reply, len(commands))
	fail := func(from int, err error) []Reply {
		for i := from; i < len(replies); i++ {
			replies[i] = Reply{Err: err}
		}
		return replies
	}
	var half time.Duration
	s.Set(func() { half = s.Delay / 2 })
	err := ctx.Err()
	if err == nil {
		err = wait(ctx, half)
	}
	if err != nil {
		return fail(0, err)
	}
	executed, stuck := s.receive(commands, replies)
	if executed < len(commands) {
		if stuck == nil {
			stuck = ctx.Done()
		}
		<-stuck
		return fail(executed, errTimeout)
	}
	err = wait(ctx, half)
	if err != nil {
		return fail(0, err)
	}
	return replies
}

// wait returns after d, or when the context ends. Timers that fire at once must not meet in a
// bubble: the race detector crashes if two goroutines run them at a time.
func wait(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	select {
	case <-time.After(d): // the bubble's clock
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// receive executes commands until there is one that the server does not answer. It returns how
// many it has executed, and what ends the wait for the others, if it is not the end of the client's
// context.
func (s *Server) receive(
	commands []Command, replies []Reply,
) (executed int, stuck <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Together = append(s.Together, len(commands))
	for i, c := range commands {
		s.Trips++
		if s.Hangs || s.Hanging != "" && c.Words[1] == s.Hanging {
			return i, s.Stuck
		}
		replies[i].Text, replies[i].Err = s.execute(c.Words, c.Key)
	}
	return len(commands), nil
}

var (
	errTimeout  = errors.New("i/o timeout")
	errNoScript = errors.New("NOSCRIPT No matching script")
	errUnknown  = errors.New("ERR fakeredis: unknown command or script")
)

func (s *Server) execute(words []string, key int) (string, error) {
	run := script{}
	switch words[0] {
	case "DEL":
	case "EVAL":
		s.Load(words[1])
		s.Evals++
		run = scriptOf(words[1])
	case "EVALSHA":
		known := false
		run, known = s.scripts[words[1]]
		if !known {
			return "", errNoScript
		}
	default:
		return "", errUnknown
	}
	if s.Fail != nil && s.Failures != 0 {
		s.Failures--
		return "", s.Fail
	}
	if words[0] == "DEL" {
		return s.delete(words[key]), nil
	}
	many, err := strconv.Atoi(words[2])
	if err != nil {
		return "", err
	}
	keys, args := words[key:key+many], words[key+many:]
	switch run.does {
	case reads:
		return s.Values[keys[0]], nil
	case readsWithTime:
		return headOf(s.now(), replyOther) + s.Values[keys[0]], nil
	}
	if s.Meddle != nil {
		s.Meddle()
	}
	switch run.does {
	case replaces:
		return s.replace(keys[0], args), nil
	case decides:
		return s.decide(run, keys[0], args)
	case decidesJointly:
		return s.decideJointly(run, keys, args)
	}
	return "", errUnknown
}

// now returns the time of the server's clock.
func (s *Server) now() time.Time { return time.Now().Add(s.Skew).Truncate(tick) }

// delete returns how many keys it has deleted.
func (s *Server) delete(key string) string {
	_, had := s.Values[key]
	if !had {
		return "0"
	}
	delete(s.Values, key)
	return "1"
}

// replace sets the value of a key, if it is still the one that the process has computed from.
func (s *Server) replace(key string, args []string) string {
	was, next := args[0], args[1]
	if s.Values[key] != was {
		return headOf(s.now(), replyOther) + s.Values[key]
	}
	s.Values[key] = next
	s.Replaced++
	return headOf(s.now(), replyDone)
}
