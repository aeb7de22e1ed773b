package ratelimit

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/memory"
	"github.com/ratelimit-go/ratelimit/internal/param"
	"github.com/ratelimit-go/ratelimit/internal/timeline"
)

// This file saves a MemoryStore to a file, and loads it.

// Save writes the states of all limiters with a name ([WithName]) to a file, from which Load takes
// them: when the program ends, after the server's Shutdown, or every minute, which bounds what a
// crash forgets. Load must have been called before the limiters were made, also if there was no
// file. Of a key that requests use meanwhile, the file has the state of an instant during Save. A
// TakeAll that is under way may be in the state of one key, and not in that of another. Waiters are
// not saved.
//
// The file is written beside the old one, and takes its place when it is complete: whoever kills
// Save leaves the old file whole. A file that Load could not use is kept, with ".refused-" and a
// number behind its name. The mode of the file is 0600, because whoever reads it can find out which
// keys are in it, by trying. A key takes 12 bytes and its state, mostly 8 bytes. A million keys
// take about a tenth of a second. Requests wait for the keys that are being copied, as long as for
// a table that grows.
//
// Limiters without a name are left out, and make an error that matches [ErrInvalid], although the
// others are saved; so may one that is no longer used, until the garbage collector has found it.
// With any other error, the old file is as it was.
func (s *MemoryStore) Save(path string) error {
	s.saving.Lock()
	defer s.saving.Unlock()
	file, err := fileAt(path)
	if err != nil {
		return fmt.Errorf("ratelimit: cannot save the states: %w", err)
	}
	s.mu.Lock()
	named, saved := maps.Clone(s.byName), s.loaded.Clone()
	saves, keeps := s.engine.Saves(), s.refused[file]
	unnamed := s.engine.Unnamed(named)
	s.mu.Unlock()
	if !saves {
		return param.Invalid("Save", "without Load", "must be of a store that Load was called on, "+
			"before limiters were made, also if there was no file")
	}
	f, err := newFileBeside(file)
	if err == nil {
		content := func(w io.Writer) error { return s.engine.Save(w, named, saved) }
		err = f.write(content, keeps)
	}
	if err != nil {
		return fmt.Errorf("ratelimit: cannot save the states: %w", err)
	}
	if keeps {
		s.mu.Lock()
		delete(s.refused, file)
		s.mu.Unlock()
	}
	if unnamed > 0 {
		return param.Invalid("the store's limiters without a name", unnamed,
			"must be 0, because Save leaves them out: give each a name by WithName")
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
// If there are more keys than MaxKeys, those stay that eviction would have left. If the clock is
// behind the time of saving, it stands still until then, by a minute at most; a coarse clock goes
// on from then ([NewCoarseClock]).
//
// If there is no file, the error matches [io/fs.ErrNotExist]: the store is empty, and can be used.
// A file that is damaged, cut off, of a later version, or saved more than a minute ahead of the
// system's clock, is refused as a whole, the error says why, and the store is empty, too. If it was
// saved by another clock ([WithClock]), the first [New] refuses the store instead. A store that a
// limiter uses, or a second Load, is an error that matches [ErrInvalid].
func (s *MemoryStore) Load(path string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.isOpened || s.engine.InUse():
		return param.Invalid("Load", "after New", "must come before a limiter uses the store")
	case s.loaded != nil:
		return param.Invalid("Load", "called twice", "must be called once for a store")
	}
	s.engine.Prepare()
	file, err := fileAt(path)
	var saved *memory.Saved
	if err == nil {
		saved, err = readSaved(file)
	}
	if err != nil {
		if file != "" && !errors.Is(err, os.ErrNotExist) {
			if s.refused == nil {
				s.refused = map[string]bool{}
			}
			s.refused[file] = true
		}
		return fmt.Errorf("ratelimit: cannot load the states from %q: %w", path, err)
	}
	s.loaded = saved
	s.engine.Restore(saved)
	return nil
}

// readSaved returns what a file has.
func readSaved(file string) (*memory.Saved, error) {
	all, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	saved, err := memory.ReadSaved(all)
	if err == nil && saved.IsSystem {
		err = checkSaved(saved, timeline.InstantOf(time.Now()))
	}
	return saved, err
}

// fileAt returns the one path by which a file is known, or an error if another kind of thing is
// there. What a link links to is the file.
func fileAt(path string) (file string, err error) {
	if path == "" {
		return "", param.Invalid("path", path, "must be the path of a file")
	}
	_, err = os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return filepath.Abs(path)
	}
	file, err = filepath.EvalSymlinks(path)
	if err != nil {
		return "", err
	}
	info, err := os.Stat(file)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file", file)
	}
	if err != nil {
		return "", err
	}
	return filepath.Abs(file)
}

// A fileBeside is a new file beside the one that it is to replace.
type fileBeside struct {
	*os.File
	path string // of the other one
}

// These end the names of files beside another one, before a random number.
const (
	newEnd     = ".new-"
	refusedEnd = ".refused-"
)

// newFileBeside makes a new file beside another one. It removes those that processes have left
// which were killed.
func newFileBeside(path string) (f fileBeside, err error) {
	dir, name := filepath.Split(path)
	others, _ := os.ReadDir(dir) // it need not be readable
	for _, other := range others {
		number, isBeside := strings.CutPrefix(other.Name(), name+newEnd)
		if !isBeside || strings.Trim(number, "0123456789") != "" || !other.Type().IsRegular() {
			continue
		}
		info, err := other.Info()
		isOld := err == nil && time.Since(info.ModTime()) > time.Minute
		if isOld { // nobody writes it any more
			_ = os.Remove(filepath.Join(dir, other.Name()))
		}
	}
	f.path = path
	f.File, err = os.CreateTemp(dir, name+newEnd+"*") // with mode 0600
	return f, err
}

// write replaces the other file by what content writes, or leaves it as it is. If keeps is true, it
// gives the other file another name.
func (f fileBeside) write(content func(io.Writer) error, keeps bool) (err error) {
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	w := bufio.NewWriterSize(f, 1<<20)
	err = content(w)
	if err == nil {
		err = w.Flush()
	}
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	var kept string
	if err == nil && keeps {
		kept, err = keep(f.path)
	}
	if err != nil {
		return err
	}
	err = os.Rename(f.Name(), f.path)
	if err != nil {
		if kept != "" {
			_ = os.Rename(kept, f.path)
		}
		return err
	}
	if dir, err := os.Open(filepath.Dir(f.path)); err == nil {
		_ = dir.Sync() // not every system can do that
		_ = dir.Close()
	}
	return nil
}

// keep gives a file a name that no other one has. It returns that name, or "" if there is no file.
func keep(path string) (kept string, err error) {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+refusedEnd+"*")
	if err != nil {
		return "", err
	}
	_ = f.Close()
	err = os.Rename(path, f.Name())
	if err == nil {
		return f.Name(), nil
	}
	_ = os.Remove(f.Name())
	if errors.Is(err, os.ErrNotExist) { // somebody has removed it
		return "", nil
	}
	return "", err
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
