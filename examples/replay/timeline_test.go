package main

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"
)

func TestBinning(t *testing.T) {
	for _, c := range []struct {
		name  string
		log   string
		width time.Duration
		first int64
		count int
	}{
		{"one request", "100 a", time.Second, 100, 1},
		{"an hour", "0 a\n3600 a", time.Second, 0, 3601},
		{"a second more", "0 a\n3601 a", 2 * time.Second, 0, 1801},
		{"unaligned", "59 a\n3680 a", 2 * time.Second, 29, 1812},
		{"milliseconds", "0.5 a\n1.001 a", time.Millisecond, 500, 502},
		{"before the epoch", "-1.5 a\n-0.5 a", time.Millisecond, -1500, 1001},
		{"a century", "-1577923200 a\n1577836800 a", 28 * day, -653, 1306},
	} {
		b := newBinning(mustRead(t, c.log, byIP))
		if b.width != c.width || b.first != c.first || b.count != c.count {
			t.Errorf("%s: got %v from %d, %d bins; want %v from %d, %d bins", c.name, b.width, b.first, b.count, c.width, c.first, c.count)
		}
	}
	if got, want := (binning{width: 5 * time.Second}).coarser(), []int{1, 2, 3, 6, 12, 24, 60, 120, 180, 360, 720, 1440, 2160}; !reflect.DeepEqual(got, want) {
		t.Errorf("5 s may be merged by %v, want %v", got, want)
	}
}

func TestBinningCoversEveryRequest(t *testing.T) {
	for span := 1; span < 1_000_000_000; span *= 3 {
		tr := mustRead(t, fmt.Sprintf("-7 a\n%d.5 b", span), byIP)
		b := newBinning(tr)
		if b.count > maxBins {
			t.Errorf("span %d s: %d bins, want at most %d", span, b.count, maxBins)
		}
		if first, last := b.of(tr.requests[0].at), b.of(tr.requests[1].at); first != 0 || last != b.count-1 {
			t.Errorf("span %d s: the first request is in bin %d, the last in %d; want 0 and %d", span, first, last, b.count-1)
		}
	}
}

func TestSparse(t *testing.T) {
	if got, want := newSparse([]int64{0, 5, 0, 0, 7, 1}), (sparse{1, 5, 3, 7, 1, 1}); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := newSparse(make([]int64, 5)); got == nil || len(got) != 0 {
		t.Errorf("got %#v, want an empty row, not null", got)
	}
}

func TestTimelines(t *testing.T) {
	tr := mustRead(t, "0 a\n0 a\n0 b 4\n2 a\n2 c\n", byIP)
	o := &outcome{verdicts: []uint64{0b01101}} // the second a and c are denied
	all, some := timelines(tr, []*outcome{o}, newBinning(tr), []int{1, 0})

	if want := (timeline{Offered: sparse{0, 6, 2, 2}, Denied: []sparse{{0, 1, 2, 1}}}); !reflect.DeepEqual(all, want) {
		t.Errorf("all keys: %v, want %v", all, want)
	}
	if want := (timeline{Offered: sparse{0, 4}, Denied: []sparse{{}}}); !reflect.DeepEqual(some[0], want) {
		t.Errorf("key b: %v, want %v", some[0], want)
	}
	if want := (timeline{Offered: sparse{0, 2, 2, 1}, Denied: []sparse{{0, 1}}}); !reflect.DeepEqual(some[1], want) {
		t.Errorf("key a: %v, want %v", some[1], want)
	}
}
