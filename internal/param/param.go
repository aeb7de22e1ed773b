// Package param has the error of a parameter that cannot be used.
package param

import (
	"errors"
	"fmt"
)

// ErrInvalid is what every such error matches.
var ErrInvalid = errors.New("ratelimit: invalid parameter")

// An invalidError is an ErrInvalid with its particulars.
type invalidError struct {
	field string
	value any
	want  string
}

// Invalid returns the error for a parameter that cannot be used.
func Invalid(field string, value any, want string) error {
	return &invalidError{field, value, want}
}

func (e *invalidError) Error() string {
	return fmt.Sprintf("ratelimit: %s is %v: it %s", e.field, e.value, e.want)
}

func (e *invalidError) Is(target error) bool { return target == ErrInvalid }

// Within returns err with its field named as a part of another.
func Within(field string, err error) error {
	if e, ok := errors.AsType[*invalidError](err); ok {
		return &invalidError{field + "." + e.field, e.value, e.want}
	}
	return err
}
