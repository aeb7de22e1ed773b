// Package param checks parameters and options, for the packages of this module, and makes the
// errors about them.
package param

import (
	"errors"
	"fmt"
	"reflect"
)

// ErrInvalid matches every error of this package.
var ErrInvalid = errors.New("ratelimit: invalid parameter")

// An invalidError is an ErrInvalid with its details.
type invalidError struct {
	pkg   string
	field string
	value any
	want  string
}

// Invalid returns the error for a field of package ratelimit with an invalid value.
// want completes the sentence "it …".
func Invalid(field string, value any, want string) error {
	return InvalidIn("ratelimit", field, value, want)
}

// InvalidIn is Invalid for a field of another package.
func InvalidIn(pkg, field string, value any, want string) error {
	return &invalidError{pkg, field, value, want}
}

func (e *invalidError) Error() string {
	value := e.value
	if value == nil {
		value = "nil" // which is how users write it
	}
	return fmt.Sprintf("%s: %s is %v: it %s", e.pkg, e.field, value, e.want)
}

func (e *invalidError) Is(target error) bool { return target == ErrInvalid }

// Within returns err with its field named as a field of another one.
func Within(field string, err error) error {
	if e, ok := errors.AsType[*invalidError](err); ok {
		return &invalidError{e.pkg, field + "." + e.field, e.value, e.want}
	}
	return err
}

// Same reports whether a and b are the same value. Values that cannot be compared are not.
func Same(a, b any) bool { return reflect.ValueOf(a).Comparable() && a == b }

// IsNil reports whether v is nil, or an interface that holds a nil.
func IsNil(v any) bool {
	r := reflect.ValueOf(v)
	switch r.Kind() {
	case reflect.Invalid:
		return true
	case reflect.Pointer, reflect.Func, reflect.Map, reflect.Slice, reflect.Chan:
		return r.IsNil()
	}
	return false
}
