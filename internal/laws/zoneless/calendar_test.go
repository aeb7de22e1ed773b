package zoneless_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
)

// A program without zone data has the days of UTC.
func TestDaysOfUTC(t *testing.T) {
	for _, zone := range []string{"", "UTC"} {
		clk := ratelimittest.NewClock(time.Date(2026, 3, 10, 21, 0, 0, 0, time.UTC))
		daily := ratelimit.CalendarWindow{Limit: 2, Every: ratelimit.Day, Zone: zone}
		l, err := ratelimit.New(daily, ratelimit.WithClock(clk))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []ratelimit.Decision{
			{Allowed: true},
			{RetryAfter: 3 * time.Hour},
			{Allowed: true},
		} {
			d, err := l.Take(context.Background(), "k", 2)
			if err != nil || d.Allowed != want.Allowed || d.RetryAfter != want.RetryAfter {
				t.Errorf("zone %q: got %+v, %v, want %+v", zone, d, err, want)
			}
			clk.Advance(d.RetryAfter)
		}
	}
}

// New refuses a zone that the program has no data of, and says where to get the data.
func TestZonesNeedData(t *testing.T) {
	const zone = "Europe/London"
	_, unknown := time.LoadLocation(zone)
	if unknown == nil && runtime.GOOS == "wasip1" {
		t.Fatal("this program should have no zone data")
	}
	_, err := ratelimit.New(ratelimit.CalendarWindow{Limit: 1, Every: ratelimit.Day, Zone: zone})
	switch {
	case unknown == nil && err != nil:
		t.Errorf("the program has data of the zone, but New returns %v", err)
	case unknown == nil:
	case !errors.Is(err, ratelimit.ErrInvalid):
		t.Errorf("got %v, want an error that matches ErrInvalid", err)
	case !strings.Contains(err.Error(), zone) || !strings.Contains(err.Error(), "import time/tzdata"):
		t.Errorf("got %q, want an error that names the zone and time/tzdata", err)
	}
}
