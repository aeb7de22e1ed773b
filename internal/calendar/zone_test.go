package calendar

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A program without zone data has UTC, and no other zone.
func TestWithoutZoneData(t *testing.T) {
	defer func(was func(string) (*time.Location, error)) { load, unknown = was, unknownZones{} }(load)
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

// A name of no zone is looked for once a minute, and not in each call. Its data may be installed meanwhile. However many names
// there are, few are kept.
func TestUnknownZones(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		defer func(was func(string) (*time.Location, error)) { load, unknown = was, unknownZones{} }(load)
		unknown = unknownZones{}
		loads, missing := 0, errors.New("open zoneinfo: not found")
		load = func(string) (*time.Location, error) { loads++; return nil, missing }
		for range 100 {
			_, err := Zone("Europe/Lundon")
			require.ErrorIs(t, err, missing)
		}
		assert.Equal(t, 1, loads)
		load = func(name string) (*time.Location, error) { return time.FixedZone(name, 3600), nil }
		_, err := Zone("Europe/Lundon")
		require.ErrorIs(t, err, missing)
		time.Sleep(unknownFor + 1)
		_, err = Zone("Europe/Lundon")
		require.NoError(t, err)
		zones.Delete("Europe/Lundon")

		load = func(string) (*time.Location, error) { return nil, missing }
		for i := range 3 * mostUnknown {
			_, err := Zone(fmt.Sprint("Europe/", i))
			require.Error(t, err)
			require.LessOrEqual(t, len(unknown.byName), mostUnknown)
		}
	})
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
