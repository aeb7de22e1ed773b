package stray

import (
	"context"
	"errors"
	"maps"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var errAway = errors.New("the store is away")

// A store counts how often it was asked. It runs in a bubble.
type store struct {
	begin time.Time
	asked []time.Duration                         // when
	end   func(asked int) (found bool, err error) // what it answers
}

// hold returns a hold that s is asked to end.
func (s *store) hold() Hold {
	s.begin = time.Now()
	return Hold{ID: 1, End: func() (bool, error) {
		s.asked = append(s.asked, time.Since(s.begin).Truncate(time.Millisecond))
		return s.end(len(s.asked))
	}}
}

// pass lets a time pass, and waits until everything has ended that was due.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// millis returns durations of so many milliseconds.
func millis(of ...time.Duration) (ds []time.Duration) {
	for _, d := range of {
		ds = append(ds, d*time.Millisecond)
	}
	return ds
}

func TestList(t *testing.T) {
	for name, tt := range map[string]struct {
		end  func(asked int) (found bool, err error)
		want []time.Duration
	}{
		"found": {func(int) (bool, error) { return true, nil }, millis(50)},
		"found late": {func(asked int) (bool, error) { return asked == 4, nil },
			millis(50, 150, 350, 750)},
		"not found": {func(int) (bool, error) { return false, nil },
			millis(50, 150, 350, 750, 1550, 3150, 6350, 12750)},
		"away": {func(asked int) (bool, error) {
			if asked < 7 {
				return false, errAway
			}
			return true, nil
		}, millis(50, 150, 350, 750, 1550, 3150, 6350)},
		"panics": {func(asked int) (bool, error) {
			if asked < 3 {
				panic("in code of the program")
			}
			return true, nil
		}, millis(50, 150, 350)},
		"ends its goroutine": {func(asked int) (bool, error) {
			if asked < 3 {
				runtime.Goexit() // as a test's Fatal does
			}
			return true, nil
		}, millis(50, 150, 350)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var l List
				s := store{end: tt.end}
				l.Add(s.hold())
				pass(time.Hour)
				assert.Equal(t, tt.want, s.asked)
				assert.Empty(t, l.ids())
			})
		})
	}
}

// A store that is away for a day is not asked any more.
func TestList_LongOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l List
		s := store{end: func(int) (bool, error) { return false, errAway }}
		l.Add(s.hold())
		pass(2 * longestOutage)
		last := s.asked[len(s.asked)-1]
		// The last time it is asked is some time in the last longestPause.
		assert.InDelta(t, longestOutage, last, float64(longestPause))
		assert.Empty(t, l.ids())
	})
}

func TestList_Forget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l List
		l.Forget(1)
		s := store{end: func(int) (bool, error) { return false, errAway }}
		l.Add(s.hold())
		pass(200 * time.Millisecond)
		l.Forget(1)
		pass(time.Minute)
		assert.Equal(t, millis(50, 150), s.asked)

		// While the store is asked, too.
		s.asked, s.end = nil, func(int) (bool, error) {
			l.Forget(1)
			return false, errAway
		}
		l.Add(s.hold())
		pass(time.Minute)
		assert.Len(t, s.asked, 1)
	})
}

// A store that is away is asked about few of many holds, and once it answers about all.
func TestList_Many(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l List
		var away atomic.Bool
		var asked, atOnce, most, ended atomic.Int64
		away.Store(true)
		const many = 1000
		for id := range uint64(many) {
			l.Add(Hold{ID: id, End: func() (bool, error) {
				asked.Add(1)
				most.Store(max(most.Load(), atOnce.Add(1)))
				time.Sleep(time.Millisecond)
				atOnce.Add(-1)
				if away.Load() {
					return false, errAway
				}
				ended.Add(1)
				return true, nil
			}})
		}
		pass(60 * time.Millisecond)
		assert.EqualValues(t, maxAtOnce, asked.Load())
		away.Store(false)
		pass(time.Second)
		assert.EqualValues(t, many, ended.Load())
		assert.EqualValues(t, maxAtOnce, most.Load())
		assert.Empty(t, l.ids())
	})
}

// When the store has answered another call, it is asked soon about a hold about which it was asked
// in vain, and not about others.
func TestList_Answered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l List
		l.Answered()
		s := store{end: func(asked int) (bool, error) {
			switch {
			case asked < 10:
				return false, errAway
			case asked == 10:
				return false, nil
			}
			return true, nil
		}}
		l.Add(s.hold())
		l.Answered()
		pass(30 * time.Second)
		assert.Equal(t, millis(50, 150, 350, 750, 1550, 3150, 6350, 12750, 25550), s.asked)
		l.Answered()
		pass(0)
		l.Answered()
		pass(time.Hour)
		assert.Equal(t, millis(30000, 30100), s.asked[9:], "it was not found at first")
		assert.Empty(t, l.ids())
	})
}

// While the store answers other calls and fails for some holds, it is asked about each of these
// once in a second.
func TestList_AnsweredOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l List
		var asked atomic.Int64
		const holds = 3
		for id := range uint64(holds) {
			l.Add(Hold{ID: id, End: func() (bool, error) {
				asked.Add(1)
				return false, errAway
			}})
		}
		const seconds = 60
		for range seconds * 1000 {
			l.Answered()
			pass(time.Millisecond)
		}
		assert.InDelta(t, holds*seconds, asked.Load(), holds*5)

		// Once it answers no call, once in a minute.
		pass(2 * time.Minute)
		asked.Store(0)
		pass(time.Hour)
		assert.InDelta(t, holds*60, asked.Load(), holds)
	})
}

// Of several holds, the one that rests for longest is asked about first, whichever others are forgotten.
func TestList_AnsweredInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l List
		begin := time.Now()
		var asked [3]time.Duration // when, at last
		for id := range uint64(len(asked)) {
			l.Add(Hold{ID: id, End: func() (bool, error) {
				asked[id] = time.Since(begin)
				return false, errAway
			}})
			pass(10 * time.Second)
		}
		pass(time.Until(begin.Add(10*time.Minute + 3*time.Second)))
		assert.Equal(t, [3]time.Duration{582350 * time.Millisecond, 592350 * time.Millisecond, 602350 * time.Millisecond}, asked)
		l.Forget(0)
		l.Answered()
		pass(0)
		assert.Equal(t, 603*time.Second, asked[1])
		pass(350 * time.Millisecond)
		assert.Equal(t, 603350*time.Millisecond, asked[2])
	})
}

// A store that was away is asked about all holds once it has answered about one.
func TestList_AnsweredOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l List
		begin := time.Now()
		var ended atomic.Int64
		back := func() (bool, error) {
			if time.Since(begin) < time.Hour {
				return false, errAway
			}
			ended.Add(1)
			return true, nil
		}
		l.Add(Hold{ID: 1, End: back})
		pass(time.Hour)
		l.Add(Hold{ID: 2, End: back})
		pass(60 * time.Millisecond)
		assert.EqualValues(t, 2, ended.Load())
	})
}

// A hold that is not found after an outage is looked for as often as one without an outage, though
// the store fails once more: the call that opens it may still be on its way.
func TestList_NotFoundAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l List
		s := store{end: func(asked int) (bool, error) {
			if asked < 20 || asked == 21 {
				return false, errAway
			}
			return false, nil
		}}
		l.Add(s.hold())
		pass(time.Hour)
		looked := s.asked[19:]
		for i := range looked {
			looked[i] -= s.asked[18]
		}
		assert.Equal(t, millis(60000, 60100, 60200, 60400, 60800, 61600, 63200, 66400, 72800), looked)
		assert.Empty(t, l.ids())
	})
}

// Of too many holds, the oldest are forgotten.
func TestList_TooMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l List
		end := func() (bool, error) { return true, nil }
		l.Add(Hold{ID: 0, End: end})
		pass(time.Millisecond)
		for id := range uint64(maxHolds) {
			l.Add(Hold{ID: 1 + id, End: end})
		}
		known := l.ids()
		assert.LessOrEqual(t, len(known), maxHolds)
		assert.Greater(t, len(known), maxHolds/2)
		assert.NotContains(t, known, uint64(0))
		assert.Contains(t, known, uint64(maxHolds))
	})
}

// A hold that has ended by itself is forgotten, so that a List keeps nothing for longer than it matters.
func TestList_Lasts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for lasts, want := range map[time.Duration]time.Duration{
			time.Millisecond: longestPause, time.Hour: time.Hour + longestPause, 1<<63 - 1: longestOutage,
		} {
			var l List
			s := store{end: func(int) (bool, error) { return false, errAway }}
			givenUp := 0
			h := s.hold()
			h.Lasts, h.GivenUp = lasts, func() { givenUp++ }
			l.Add(h)
			pass(2 * longestOutage)
			// The last time it is asked is some time in a longestPause.
			assert.InDelta(t, want, s.asked[len(s.asked)-1], float64(longestPause))
			assert.Empty(t, l.ids())
			assert.Equal(t, 1, givenUp)
		}
	})
}

// Close has the store asked once more, and then leaves nothing that runs or could run: the bubble ends.
func TestList_Close(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, tt := range map[string]struct {
			end     func(asked int) (bool, error)
			after   time.Duration // when it is closed
			asked   int
			givenUp int
		}{
			"not asked yet":   {func(int) (bool, error) { return true, nil }, 0, 1, 0},
			"found at last":   {func(asked int) (bool, error) { return asked == 4, errAwayUntil(asked, 4) }, 400 * time.Millisecond, 4, 0},
			"away":            {func(int) (bool, error) { return false, errAway }, 400 * time.Millisecond, 4, 1},
			"away for long":   {func(int) (bool, error) { return false, errAway }, time.Hour, 70, 1},
			"not found":       {func(int) (bool, error) { return false, nil }, 400 * time.Millisecond, 4, 0},
			"answers no more": {func(asked int) (bool, error) { return false, errAwayUntil(-asked, -1) }, 400 * time.Millisecond, 4, 0},
			"panics":          {func(int) (bool, error) { panic("in code of the program") }, 400 * time.Millisecond, 4, 1},
		} {
			var l List
			require.NoError(t, l.Close(t.Context()), "of an empty list")
			l = List{}
			s, givenUp := store{end: tt.end}, 0
			h := s.hold()
			h.GivenUp = func() { givenUp++ }
			l.Add(h)
			pass(tt.after)
			require.NoError(t, l.Close(t.Context()), name)
			require.NoError(t, l.Close(t.Context()), name)
			assert.Empty(t, l.ids(), name)
			assert.Len(t, s.asked, tt.asked, name)
			assert.Equal(t, tt.givenUp, givenUp, name)
			assert.False(t, l.timer.Stop(), "%s: a timer runs", name)

			l.Add(h)
			l.Answered()
			pass(2 * longestOutage)
			assert.Len(t, s.asked, tt.asked, name)
			assert.Equal(t, tt.givenUp+1, givenUp, name)
		}
	})
}

// errAwayUntil is errAway as long as asked is less than when.
func errAwayUntil(asked, when int) error {
	if asked < when {
		return errAway
	}
	return nil
}

// Close of many holds asks a store that is away about a few of them, and one that answers about all.
func TestList_CloseMany(t *testing.T) {
	for _, away := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var l List
			var asked atomic.Int64
			const many = 1000
			for id := range uint64(many) {
				l.Add(Hold{ID: id, End: func() (bool, error) {
					asked.Add(1)
					time.Sleep(time.Millisecond)
					if away {
						return false, errAway
					}
					return true, nil
				}})
			}
			require.NoError(t, l.Close(t.Context()))
			assert.Empty(t, l.ids())
			if away {
				assert.EqualValues(t, maxAtOnce, asked.Load())
			} else {
				assert.EqualValues(t, many, asked.Load())
			}
		})
	}
}

// Close does not wait for a store that hangs for longer than its context, and that store is not asked again.
func TestList_CloseOfHanging(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l List
		answer := make(chan error)
		s := store{end: func(int) (bool, error) { return false, <-answer }}
		l.Add(s.hold())
		pass(firstPause)
		l.Add(Hold{ID: 2, End: func() (bool, error) { return false, errAway }})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, l.Close(ctx), context.DeadlineExceeded)
		answer <- errAway
		require.NoError(t, l.Close(t.Context()))
		assert.Empty(t, l.ids())
		pass(time.Hour)
		assert.Len(t, s.asked, 1)
	})
}

// ids returns the IDs of the holds.
func (l *List) ids() []uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.holds))
}
