package sqlstore

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"

	"github.com/benbjohnson/clock"

	"github.com/ratelimit-go/ratelimit"
)

// An Option configures a [Store].
type Option func(*config)

type config struct {
	table   string
	creates bool
	clk     clock.Clock
	isTest  bool // whether clk is that of tests
}

// WithTable sets the name of the table, which may include a schema, such as limits.states. The
// default is ratelimit_states. Stores with different tables share no state.
func WithTable(name string) Option { return func(c *config) { c.table = name } }

// WithoutCreate makes New leave the database alone: somebody else creates the table. So New
// succeeds while the database is away, and the service starts. Each call checks the table until one
// has found it as it must be.
func WithoutCreate() Option { return func(c *config) { c.creates = false } }

// WithClock sets the clock by which rows expire: that of the limiters, see [ratelimit.WithClock].
// It is for tests. Then the store does not compare clocks.
func WithClock(clk clock.Clock) Option {
	return func(c *config) { c.clk, c.isTest = clk, true }
}

// tableName matches the names that need no quotes.
var tableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?$`)

func newConfig(opts []Option) (*config, error) {
	c := &config{table: "ratelimit_states", creates: true, clk: clock.New()}
	for i, opt := range opts {
		if opt == nil {
			return nil, invalid("option %d of New is nil: it must be the result of a With function", i)
		}
		opt(c)
	}
	if !tableName.MatchString(c.table) {
		return nil, invalid("WithTable's name is %q: it must be that of a table, such as "+
			"ratelimit_states or limits.states", c.table)
	}
	if v := reflect.ValueOf(c.clk); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		return nil, invalid("WithClock's clock is nil: it must be a clock.Clock, such as clock.New()")
	}
	return c, nil
}

// ErrUnsuitable means that the table, or a setting of the database, is not as it must be. The
// limiter's [ratelimit.FailurePolicy] decides until it is.
var ErrUnsuitable = errors.New("sqlstore: the database is unsuitable")

// unsuitable returns an error that matches ErrUnsuitable.
func unsuitable(format string, args ...any) error {
	return &namedError{fmt.Sprintf("sqlstore: "+format, args...), ErrUnsuitable}
}

// invalid returns an error that matches [ratelimit.ErrInvalid].
func invalid(format string, args ...any) error {
	return &namedError{fmt.Sprintf("sqlstore: "+format, args...), ratelimit.ErrInvalid}
}

var errNoContext = invalid("ctx is nil: it must not be nil; context.Background() is one")

// A namedError is one that its text describes, and that matches another one.
type namedError struct {
	text string
	is   error
}

func (e *namedError) Error() string        { return e.text }
func (e *namedError) Is(target error) bool { return target == e.is }
