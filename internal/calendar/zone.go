package calendar

import (
	"errors"
	"sync"
	"time"
)

// UTC is the name of the zone that needs no zone data.
const UTC = "UTC"

// errNoZone is the error of names that time.LoadLocation knows, but that name no zone.
var errNoZone = errors.New("it names no zone")

// zones has the zones that were loaded, by name. There are about 600.
var zones sync.Map

// load is replaced by tests.
var load = time.LoadLocation

// Zone returns the time zone with a name, such as "Europe/London".
func Zone(name string) (*time.Location, error) {
	switch name {
	case UTC:
		return time.UTC, nil
	case "", "Local": // in which two machines may differ
		return nil, errNoZone
	}
	if zone, ok := zones.Load(name); ok {
		return zone.(*time.Location), nil
	}
	zone, err := load(name)
	if err != nil {
		return nil, err
	}
	kept, _ := zones.LoadOrStore(name, zone)
	return kept.(*time.Location), nil
}
