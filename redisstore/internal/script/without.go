package script

// WithoutAny makes all limits like those of an algorithm that no script knows, until the function
// is called that it returns: for tests of a store.
func WithoutAny() (restore func()) {
	known := kernels
	clear(kernels[:])
	return func() { kernels = known }
}
