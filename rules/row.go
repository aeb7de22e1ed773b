package rules

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// names are the names of a rule's fields in a table, such as THROTTLED_CALLS (see SQL, in sql.go, for what each column
// means), or a file. A file has no field for
// the method, which is part of the call.
type names struct {
	id, call, limit, window                           string // required, the last two only for a limit
	method, algorithm, burst, expires, shadow, enable string
}

var inTable = names{
	id:        "THROTTLE_ID",
	call:      "NORMALIZED_CALL",
	limit:     "MAX_LOCKS",
	window:    "LOCK_TIMEOUT_SECONDS",
	method:    "METHOD",
	algorithm: "ALGORITHM",
	burst:     "BURST",
	expires:   "THROTTLE_EXPIRATION",
	shadow:    "SHADOW",
	enable:    "ENABLED",
}

var inFile = names{
	id:        "id",
	call:      "call",
	limit:     "limit",
	window:    "seconds",
	algorithm: "algorithm",
	burst:     "burst",
	expires:   "expires",
	shadow:    "shadow",
	enable:    "enabled",
}

// required returns the names of the fields that every rule with a limit must have.
func (n *names) required() []string { return []string{n.id, n.call, n.limit, n.window} }

// all returns all names that a file may have.
func (n *names) all() []string {
	return append(n.required(), n.algorithm, n.burst, n.expires, n.shadow, n.enable)
}

// of returns the name of a field of [Rule].
func (n *names) of(field string) string {
	switch field {
	case "ID":
		return n.id
	case "Call":
		return n.call
	case "Limit":
		return n.limit
	case "Window":
		return n.window
	case "Algorithm":
		return n.algorithm
	case "Burst":
		return n.burst
	}
	return field
}

// A row reads the values of one rule, and keeps the first error.
type row struct {
	*names
	values map[string]any
	rowID  string
	err    error
}

// rule returns the rule, and an error if it is invalid.
func (r *row) rule() (Rule, error) {
	r.rowID = r.text(r.id, "")
	limited := planOf(r.text(r.algorithm, "")) == nil
	for _, name := range r.required() {
		if r.values[name] == nil && (limited || name == r.id || name == r.call) {
			r.wrong(name, "present")
		}
	}
	rule := Rule{
		ID:        r.rowID,
		Call:      r.text(r.call, ""),
		Algorithm: r.text(r.algorithm, ""),
		Burst:     r.number(r.burst),
		Shadow:    r.truth(r.shadow, false),
		Disabled:  !r.truth(r.enable, true),
	}
	var ok bool
	if limited {
		rule.Limit = r.number(r.limit)
		if rule.Window, ok = seconds(r.values[r.window]); !ok {
			r.wrong(r.window, wantSeconds)
		}
	}
	if v := r.values[r.expires]; v != nil {
		if rule.Expires, ok = instant(v); !ok {
			r.wrong(r.expires, wantInstant)
		}
	}
	if method := strings.TrimSpace(r.text(r.method, "")); method != "" {
		rule.Call = method + " " + rule.Call
	}
	if r.err == nil {
		r.err = r.check(rule)
	}
	return rule, r.err
}

// check validates the rule. Its errors have the names that fields have in this source.
func (r *row) check(rule Rule) error {
	_, err := rule.compile()
	var field *FieldError
	if errors.As(err, &field) {
		field.Field = r.of(field.Field)
	}
	return err
}

func (r *row) wrong(name string, want string) {
	if r.err == nil {
		r.err = &FieldError{r.rowID, name, shown(r.values[name]), want}
	}
}

func (r *row) text(name, otherwise string) string {
	switch v := r.values[name].(type) {
	case nil:
		return otherwise
	case string:
		return strings.TrimRight(v, " ") // which a char(n) adds
	case []byte:
		return strings.TrimRight(string(v), " ")
	case composite:
		r.wrong(name, "text")
		return ""
	default:
		return fmt.Sprint(v)
	}
}

// number returns the value as an integer, and 0 for null.
func (r *row) number(name string) int {
	v := r.values[name]
	if v == nil {
		return 0
	}
	n, ok := whole(v)
	if !ok || n < math.MinInt || n > math.MaxInt {
		r.wrong(name, "a whole number")
	}
	return int(n)
}

func (r *row) truth(name string, otherwise bool) bool {
	if n, ok := whole(r.values[name]); ok && (n == 0 || n == 1) { // also 1.0
		return n == 1
	}
	switch strings.ToLower(r.text(name, strconv.FormatBool(otherwise))) {
	case "true", "t", "y", "yes":
		return true
	case "false", "f", "n", "no":
		return false
	}
	r.wrong(name, "true or false, or 1 or 0")
	return otherwise
}

// readRow converts the values of a row to a rule. If there is an error, only the rule's
// ID is meaningful; it may be empty.
func readRow(n *names, values map[string]any) (Rule, error) {
	r := row{names: n, values: values}
	return r.rule()
}

// unknown returns the alphabetically first name in values that is not the name of a
// field, or "".
func (n *names) unknown(values map[string]any) (name string) {
	for v := range values {
		if !slices.Contains(n.all(), v) && (name == "" || v < name) {
			name = v
		}
	}
	return name
}
