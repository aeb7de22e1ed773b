// Package param has the error for an invalid parameter.
package param

import (
	"errors"
	"fmt"
)

// ErrInvalid matches every error of this package.
var ErrInvalid = errors.New("ratelimit: invalid parameter")

// An invalidError is an ErrInvalid with its details.
type invalidError struct {
	field string
	value any
	want  string
}

// Invalid returns the error for a field with an invalid value. want completes the
// sentence "it …".
func Invalid(field string, value any, want string) error {
	return &invalidError{field, value, want}
}

func (e *invalidError) Error() string {
	return fmt.Sprintf("ratelimit: %s is %v: it %s", e.field, e.value, e.want)
}

func (e *invalidError) Is(target error) bool { return target == ErrInvalid }

// Within returns err with its field named as a field of another one.
func Within(field string, err error) error {
	if e, ok := errors.AsType[*invalidError](err); ok {
		return &invalidError{field + "." + e.field, e.value, e.want}
	}
	return err
}
