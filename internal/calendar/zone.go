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
	zone, err := load(name)
	if err != nil {
		return nil, fmt.Errorf(
			"%w; to have the data of all zones in the program, import time/tzdata", err)
	}
	kept, _ := zones.LoadOrStore(name, zone)
	return kept.(*time.Location), nil
}
