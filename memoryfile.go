package ratelimit

import (
	"bufio"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/memory"
	"github.com/ratelimit-go/ratelimit/internal/param"
	"github.com/ratelimit-go/ratelimit/internal/timeline"
)

// This file saves a MemoryStore to a file, and loads it.

// Save writes the states of all limiters with a name ([WithName]) to a file, from which Load takes
// them: when the program ends, after the server's Shutdown, or every minute, which bounds what a
// crash forgets. Of a key that requests use meanwhile, the file has the state of an instant during
// Save. A TakeAll that is under way may be in the state of one key, and not in that of another.
// Waiters are not saved.
//
// The file is written beside the old one, and takes its place when it is complete: whoever kills
// Save leaves the old file whole. Its mode is 0600, because whoever reads it can find out which
// keys are in it, by trying. A key takes 12 bytes and its state, mostly 8 bytes. Save takes about a
// second for a few million keys, and lets requests wait for the keys that it copies, as long as a
// table that grows does.
//
// Limiters without a name are left out, and make an error that matches [ErrInvalid], although the
// others are saved. With any other error, the old file is as it was.
func (s *MemoryStore) Save(path string) error {
	s.saving.Lock()
	defer s.saving.Unlock()
	s.mu.Lock()
	named, saved := maps.Clone(s.byName), s.loaded.Clone()
	unnamed := s.engine.Spaces() - len(named)
	s.mu.Unlock()
	err := writeFile(path, func(f *os.File) error {
		w := bufio.NewWriterSize(f, 1<<20)
		if err := s.engine.Save(w, named, saved); err != nil {
			return err
		}
		return w.Flush()
	})
	switch {
	case err != nil:
		return fmt.Errorf("ratelimit: cannot save the states: %w", err)
	case unnamed > 0:
		return param.Invalid("the store's limiters without a name", unnamed,
			"must be 0, because Save leaves them out: give each a name by WithName")
	}
	return nil
}

// writeFile replaces a file by what write writes, or leaves it as it is.
func writeFile(path string, write func(*os.File) error) (err error) {
	beside := path + ".new"
	if err := os.Remove(beside); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(beside, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(beside)
		}
	}()
	err = write(f)
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err != nil {
		return err
	}
	if err := os.Rename(beside, path); err != nil {
		return err
	}
	if dir, err := os.Open(filepath.Dir(path)); err == nil {
		_ = dir.Sync() // not every system can do that
		_ = dir.Close()
	}
	return nil
}

// Load takes the states of a file that Save has written, before a limiter uses the store. Each
// limiter gets those of its name when it is made. After that, each decision is the one that the
// saving store would have made at that time: time passes while nobody runs, holds are open, end by
// themselves and can be resumed ([Limiter.Resume]). If the limit of a name has changed meanwhile,
// its states are adopted as [WithLimits] describes. What no limiter has asked for when Save is
// called is saved again.
//
// If there are more keys than MaxKeys, those with the fewest events remaining stay. If the clock is
// behind the time of saving, it stands still until then, by a minute at most.
//
// If there is no file, the error matches [io/fs.ErrNotExist]: the store is empty, and can be used.
// A file that is damaged, cut off, of a later version, or saved more than a minute ahead of the
// clock, is refused as a whole. The error says which, and the store is as it was. With [WithClock],
// [New] refuses a store that was saved ahead of that clock. A store that a limiter uses, or a
// second Load, is an error that matches [ErrInvalid].
func (s *MemoryStore) Load(path string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.isOpened:
		return param.Invalid("Load", "after New", "must come before a limiter uses the store")
	case s.loaded != nil:
		return param.Invalid("Load", "called twice", "must be called once for a store")
	}
	file, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("ratelimit: cannot load the states: %w", err)
	}
	saved, err := memory.ReadSaved(file)
	if err == nil && saved.IsSystem {
		err = checkSaved(saved, timeline.InstantOf(time.Now()))
	}
	if err != nil {
		return fmt.Errorf("ratelimit: cannot load the states from %s: %w", path, err)
	}
	s.loaded = saved
	s.engine.Restore(saved)
	return nil
}

// mostAhead is how far ahead of the clock a file may have been saved.
const mostAhead = time.Minute

// checkSaved returns an error if a file was saved too far ahead of now.
func checkSaved(saved *memory.Saved, now kernel.Instant) error {
	if saved.At <= now+uint64(mostAhead) {
		return nil
	}
	return fmt.Errorf("it was saved %v ahead of the clock, which was set back since: "+
		"set the clock, or remove the file", time.Duration(saved.At-now).Round(time.Second))
}
