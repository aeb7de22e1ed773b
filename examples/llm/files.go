package main

import (
	"context"
	"errors"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// newFiles returns a store that keeps the state of each key in a file, for one process at a time. It
// needs no server, so that the example can be tried; a real gateway has its states in Redis.
func newFiles(dir string) ratelimit.Store {
	var mu sync.Mutex // of all files
	path := func(key string) string { return filepath.Join(dir, url.PathEscape(key)) }
	get := func(_ context.Context, key string) (state []byte, version string, err error) {
		state, err = os.ReadFile(path(key))
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return state, string(state), err
	}
	swap := func(ctx context.Context, key, version string, state []byte, _ time.Time) (swapped bool, err error) {
		mu.Lock()
		defer mu.Unlock()
		if _, now, err := get(ctx, key); err != nil || now != version {
			return false, err
		}
		if err := os.WriteFile(path(key)+".new", state, 0o600); err != nil {
			return false, err
		}
		return true, os.Rename(path(key)+".new", path(key)) // which is done, or not, if the process is killed
	}
	remove := func(_ context.Context, key string) error {
		mu.Lock()
		defer mu.Unlock()
		if err := os.Remove(path(key)); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	return ratelimit.NewCASStore(get, swap, remove)
}
