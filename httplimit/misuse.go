package httplimit

import (
	"net/http"
	"reflect"
)

// A misusedKey is the error of a KeyFunc that was made with invalid arguments.
type misusedKey struct{ err error }

// key is that KeyFunc.
func (k misusedKey) key(*http.Request) (string, error) { return "", k.err }

// misuseOf returns the error of a misusedKey, and nil for other functions. It does not call
// those: they are the program's, and there is no request yet.
func misuseOf(f KeyFunc) error {
	if reflect.ValueOf(f).Pointer() != reflect.ValueOf(misusedKey{}.key).Pointer() {
		return nil
	}
	_, err := f(nil)
	return err
}
