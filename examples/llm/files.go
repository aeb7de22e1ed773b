package main

import (
	"bytes"
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

// newFiles returns a store that keeps the state of each key in a file, for one process at a time.
// It needs no server, so that the example is easy to try. A real gateway keeps its states in Redis.
func newFiles(dir string) ratelimit.Store { return ratelimit.NewStore(&files{dir: dir}) }

type files struct {
	dir string
	mu  sync.Mutex // held to change any file
}

func (db *files) path(key string) string { return filepath.Join(db.dir, url.PathEscape(key)) }

// Get implements ratelimit.Database.
func (db *files) Get(_ context.Context, key string) ([]byte, error) {
	state, err := os.ReadFile(db.path(key))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return state, err
}

// CompareAndSwap implements ratelimit.Database.
func (db *files) CompareAndSwap(
	ctx context.Context,
	key string,
	old, state []byte,
	_ time.Time,
) (swapped bool, err error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	if now, err := db.Get(ctx, key); err != nil || !bytes.Equal(now, old) {
		return false, err
	}
	if err := os.WriteFile(db.path(key)+".new", state, 0o600); err != nil {
		return false, err
	}
	return true, os.Rename(db.path(key)+".new", db.path(key)) // atomic, even if the process is killed
}

// Delete implements ratelimit.Database.
func (db *files) Delete(_ context.Context, key string) error {
	db.mu.Lock()
	defer db.mu.Unlock()
	if err := os.Remove(db.path(key)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
