package calendar

import (
	"errors"
	"fmt"
	"path"
	"sync"
	"time"
)

// UTC is the name of the zone that needs no zone data.
const UTC = "UTC"

// The errors of names that time.LoadLocation may know, but that do not name the same zone
// everywhere.
var (
	errNoName = errors.New("it is empty")
	errLocal  = errors.New("it is the zone of one machine, and others may have another")
)

// zones has the zones that were loaded, by name. There are about 600.
var zones sync.Map

// load is replaced by tests.
var load = time.LoadLocation

// unknown has the names of which there was no zone. To look for one takes half a millisecond, which
// a lookup of limits that returns it would cost in each call.
var unknown unknownZones

type unknownZones struct {
	mu     sync.Mutex
	byName map[string]unknownZone
}

// An unknownZone is why there is no zone of a name, and until when nobody looks again: its data may
// be installed meanwhile.
type unknownZone struct {
	err   error
	until time.Time
}

const (
	unknownFor  = time.Minute
	mostUnknown = 1024 // names, which may come from users
)

// why returns why there is no zone of a name, or nil if that is to be found out.
func (u *unknownZones) why(name string) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	found := u.byName[name]
	if time.Now().After(found.until) {
		return nil
	}
	return found.err
}

func (u *unknownZones) add(name string, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.byName == nil || len(u.byName) >= mostUnknown {
		u.byName = make(map[string]unknownZone)
	}
	u.byName[name] = unknownZone{err, time.Now().Add(unknownFor)}
}

// Zone returns the time zone with a name, such as "Europe/London". The error says what to do if data
// may be missing.
func Zone(name string) (*time.Location, error) {
	switch {
	case name == UTC:
		return time.UTC, nil
	case name == "":
		return nil, errNoName
	case name == "Local", path.Base(name) == "localtime":
		return nil, errLocal // localtime is a file of the zone data of many systems
	}
	if zone, ok := zones.Load(name); ok {
		return zone.(*time.Location), nil
	}
	if err := unknown.why(name); err != nil {
		return nil, err
	}
	zone, err := load(name)
	if err != nil {
		err = fmt.Errorf(
			"%w; to have the data of all zones in the program, import time/tzdata", err)
		unknown.add(name, err)
		return nil, err
	}
	kept, _ := zones.LoadOrStore(name, zone)
	return kept.(*time.Location), nil
}
