package otellimit

import "github.com/ratelimit-go/ratelimit"

// A missingError says that an argument is nil. It matches [ratelimit.ErrInvalid].
type missingError struct{ argument, must string }

func missing(argument, must string) error { return &missingError{argument, must} }

func (e *missingError) Error() string        { return "otellimit: " + e.argument + " is nil: it " + e.must }
func (e *missingError) Is(target error) bool { return target == ratelimit.ErrInvalid }
