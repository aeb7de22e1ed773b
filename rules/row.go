package rules

import (
	"errors"
	"reflect"
	"strings"
)

// A row is a rule as a table or a file has it. Its fields have the names that they have in Rule.
// The tags are the names of the columns (SQL says what each of them means), the names in a file,
// and the names of those columns that had another one before.
type row struct {
	ID             cell `table:"THROTTLE_ID"             file:"id"`
	Call           cell `table:"NORMALIZED_CALL"         file:"call"`
	Limit          cell `table:"MAX_CALLS"               file:"limit" former:"MAX_LOCKS"`
	Window         cell `table:"WINDOW_SECONDS"          file:"seconds" former:"LOCK_TIMEOUT_SECONDS"`
	Algorithm      cell `table:"ALGORITHM"               file:"algorithm"`
	Every          cell `table:"EVERY"                   file:"every"`
	Zone           cell `table:"ZONE"                    file:"zone"`
	Start          cell `table:"START"                   file:"start"`
	Hour           cell `table:"HOUR"                    file:"hour"`
	FirstLockout   cell `table:"FIRST_LOCKOUT_SECONDS"   file:"first_lockout_seconds"`
	LongestLockout cell `table:"LONGEST_LOCKOUT_SECONDS" file:"longest_lockout_seconds"`
	Burst          cell `table:"BURST"                   file:"burst"`
	Expires        cell `table:"THROTTLE_EXPIRATION"     file:"expires"`
	Shadow         cell `table:"SHADOW"                  file:"shadow"`
	Enabled        cell `table:"ENABLED"                 file:"enabled"`
	Method         cell `table:"METHOD"` // in a file, the call has the method
}

// A format is where a row comes from: the key of the tags that name its fields there.
type format string

const (
	inTable       format = "table"
	inFormerTable format = "former" // a table whose columns have their former names
	inFile        format = "file"
)

// nameOf returns the name of a field of row.
func (f format) nameOf(field string) string {
	found, _ := reflect.TypeFor[row]().FieldByName(field)
	return f.nameIn(found.Tag)
}

// nameIn returns the name of the field that has a tag.
func (f format) nameIn(tag reflect.StructTag) string {
	if name := tag.Get(string(f)); name != "" || f != inFormerTable {
		return name
	}
	return inTable.nameIn(tag)
}

// cellsOf returns the cells of a row by the names of their fields.
func (f format) cellsOf(r *row) map[string]*cell {
	cells := make(map[string]*cell)
	for field, value := range reflect.ValueOf(r).Elem().Fields() {
		if name := f.nameIn(field.Tag); name != "" {
			cells[name] = value.Addr().Interface().(*cell)
		}
	}
	return cells
}

// rule returns the rule that a row has. An error has the names of the format. Then only the rule's
// ID is meaningful; it may be empty.
func (f format) rule(r *row) (Rule, error) {
	rule, err := r.convert()
	if err == nil {
		_, err = rule.compile()
	}
	var wrong *FieldError
	if errors.As(err, &wrong) {
		wrong.Field = f.nameOf(wrong.Field)
	}
	return rule, err
}

// convert returns the cells as a rule, which may still be invalid, and the first error.
func (r *row) convert() (Rule, error) {
	id, _ := r.ID.text()
	cells := reader{id: id}
	cells.require("ID", r.ID)
	cells.require("Call", r.Call)
	rule := Rule{
		ID:             read(&cells, "ID", r.ID, cell.text),
		Call:           read(&cells, "Call", r.Call, cell.text),
		Algorithm:      read(&cells, "Algorithm", r.Algorithm, cell.algorithm),
		Every:          read(&cells, "Every", r.Every, cell.unit),
		Zone:           read(&cells, "Zone", r.Zone, cell.text),
		Start:          read(&cells, "Start", r.Start, cell.number),
		Hour:           read(&cells, "Hour", r.Hour, cell.number),
		FirstLockout:   read(&cells, "FirstLockout", r.FirstLockout, cell.optionalSeconds),
		LongestLockout: read(&cells, "LongestLockout", r.LongestLockout, cell.optionalSeconds),
		Burst:          read(&cells, "Burst", r.Burst, cell.number),
		Expires:        read(&cells, "Expires", r.Expires, cell.instant),
		Shadow:         read(&cells, "Shadow", r.Shadow, cell.truth),
		Disabled:       r.Enabled.value != nil && !read(&cells, "Enabled", r.Enabled, cell.truth),
	}
	if planOf(rule.Algorithm) == nil {
		cells.require("Limit", r.Limit)
		rule.Limit = read(&cells, "Limit", r.Limit, cell.number)
		// With an Every, another algorithm is the mistake, and not that the Window is missing.
		if rule.algorithmName() != calendarWindow && r.Every.value == nil {
			cells.require("Window", r.Window)
		}
		switch {
		case r.Window.value == nil:
		case rule.Every != 0 && rule.algorithmName() == calendarWindow:
			cells.wrong("Window", r.Window, noWindow)
		default:
			rule.Window = read(&cells, "Window", r.Window, cell.seconds)
		}
	}
	if method := strings.TrimSpace(read(&cells, "Method", r.Method, cell.text)); method != "" {
		rule.Call = method + " " + rule.Call
	}
	return rule, cells.err
}

// A reader reads the cells of a row, and keeps the first error.
type reader struct {
	id  string // of the rule
	err error
}

// read returns what a cell means. The function as also describes what it wants, if the cell is
// something else.
func read[T any](r *reader, field string, c cell, as func(cell) (value T, want string)) T {
	value, want := as(c)
	if want != "" {
		r.wrong(field, c, want)
	}
	return value
}

func (r *reader) require(field string, c cell) {
	if c.value == nil {
		r.wrong(field, c, "present")
	}
}

func (r *reader) wrong(field string, c cell, want string) {
	if r.err == nil {
		r.err = &FieldError{r.id, field, c.shown(), want}
	}
}
