package calendar

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A program without zone data has UTC, and no other zone.
func TestWithoutZoneData(t *testing.T) {
	defer func(was func(string) (*time.Location, error)) { load = was }(load)
	missing := errors.New("open zoneinfo: not found")
	load = func(string) (*time.Location, error) { return nil, missing }
	zone, err := Zone(UTC)
	require.NoError(t, err)
	assert.Equal(t, time.UTC, zone)
	_, err = Zone("Europe/Vaduz")
	assert.ErrorIs(t, err, missing)
}

// A zone is loaded once. What is no zone has an error each time.
func TestZonesAreKept(t *testing.T) {
	first, err := Zone("Europe/Vienna")
	require.NoError(t, err)
	again, err := Zone("Europe/Vienna")
	require.NoError(t, err)
	assert.Same(t, first, again)
	for _, name := range []string{"", "Local", "Europe/Nowhere", "../etc/passwd"} {
		for range 2 {
			_, err := Zone(name)
			assert.Error(t, err, "%q", name)
		}
	}
}

// The zone of the machine is no zone, whatever the system calls it.
func TestZoneOfTheMachine(t *testing.T) {
	defer func(was func(string) (*time.Location, error)) { load = was }(load)
	load = func(string) (*time.Location, error) { return time.Local, nil }
	for _, name := range []string{"Local", "localtime"} {
		_, err := Zone(name)
		assert.ErrorIs(t, err, errLocal, name)
	}
}
