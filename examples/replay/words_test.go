package main

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestDurations(t *testing.T) {
	for _, c := range []struct {
		d            time.Duration
		exact, brief string
	}{
		{0, "0s", "0s"},
		{1, "1ns", "1ns"},
		{1_234_567, "1.234567ms", "1.23ms"},
		{1_234_567_890, "1.23456789s", "1.23s"},
		{59_960 * time.Millisecond, "59.96s", "1m"},
		{60 * time.Second, "1m", "1m"},
		{100 * time.Second, "1m40s", "1m40s"},
		{time.Hour, "1h", "1h"},
		{time.Hour + 10*time.Minute, "1h10m", "1h10m"},
		{time.Hour + 10*time.Second, "1h0m10s", "1h"},
		{10 * time.Minute, "10m", "10m"},
		{20 * time.Hour, "20h", "20h"},
		{48 * time.Hour, "2d", "2d"},
		{50*time.Hour + time.Second, "2d2h0m1s", "2d2h"},
		{365*day + 13*time.Hour, "365d13h", "366d"},
	} {
		if got := exact(c.d); got != c.exact {
			t.Errorf("exact(%d) = %s, want %s", c.d, got, c.exact)
		}
		if got := brief(c.d); got != c.brief {
			t.Errorf("brief(%d) = %s, want %s", c.d, got, c.brief)
		}
	}
}

func TestPercent(t *testing.T) {
	for _, c := range []struct {
		part, whole int64
		want        string
	}{
		{0, 0, "0.0 %"}, {0, 10, "0.0 %"}, {1, 3, "33.3 %"}, {10, 10, "100.0 %"},
		{1, 100_000, "<0.1 %"}, {99_999, 100_000, ">99.9 %"},
	} {
		if got := percent(c.part, c.whole); got != c.want {
			t.Errorf("percent(%d, %d) = %s, want %s", c.part, c.whole, got, c.want)
		}
	}
}

func TestSafeKey(t *testing.T) {
	for _, c := range []struct {
		key  string
		most int
		want string
	}{
		{"192.0.2.1", 20, "192.0.2.1"},
		{"", 20, "(empty)"},
		{"\x1b[31mred\a", 20, "�[31mred�"},        // colours and bells
		{"user\u202egpj.exe", 20, "user�gpj.exe"}, // right to left
		{"bad\xff\xfe", 20, "bad�"},
		{"größe", 5, "größe"},
		{"abcdefghijklm", 9, "abcde…klm"},
		{strings.Repeat("a", 100_000) + "z", 9, "aaaaa…aaz"},
		{strings.Repeat("ö", 100_000) + "z", 9, "ööööö…ööz"},
	} {
		got := safeKey(c.key, c.most)
		if got != c.want {
			t.Errorf("safeKey(%.20q, %d) = %q, want %q", c.key, c.most, got, c.want)
		}
		if utf8.RuneCountInString(got) > c.most {
			t.Errorf("safeKey(%.20q, %d) is longer than that: %q", c.key, c.most, got)
		}
	}
}
