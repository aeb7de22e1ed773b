package fakeredis

// This file reads the turns that are ahead in a value. The server decides by the kernels, but it
// must know when a script leaves a request to the process because of turns that have come.

import (
	"encoding/binary"
	"time"
)

// A turnList is what the server reads of a value with turns ahead. internal/step/turns.go has the
// words.
type turnList struct {
	turns       []turn // at least one, in the order of time
	holdsBefore bool   // whether holds were open before the turns
	firstEnd    uint64 // of those holds
}

// A turn has the words of a reservation. Its ID is 0 if it cannot be cancelled.
type turn struct{ id, at, end uint64 }

// turnsOf reads the list of turns in a value, which is without its prefix.
func turnsOf(value string) (list turnList, readable bool) {
	const ofHead, ofTurn = 2, 4
	word := func(i uint64) uint64 { return binary.LittleEndian.Uint64([]byte(value[8*i:])) }
	words := uint64(len(value) / 8)
	if words < ofHead {
		return list, false
	}
	count, form := word(0), word(1)
	if count == 0 || count > words/ofTurn || form%4 > 1 || form > 4*words {
		return list, false
	}
	before := ofHead + ofTurn*count + form/4 // where the state before the turns begins
	list.holdsBefore = form%4 == 1
	if before > words || list.holdsBefore && before+1 >= words {
		return list, false
	}
	for i := range count {
		from := ofHead + ofTurn*i
		list.turns = append(list.turns, turn{word(from), word(from + 1), word(from + 2)})
	}
	if list.holdsBefore {
		list.firstEnd = word(before + 1)
	}
	return list, true
}

// isDue reports whether the first turn has come, or a hold that was open before the turns has
// ended.
func (l *turnList) isDue(now time.Time) bool {
	passed := uint64(now.UnixMicro())
	return l.turns[0].at <= passed || l.holdsBefore && l.firstEnd <= passed
}

// leavesHolds reports whether all turns have come, and holds may be open: those from before the
// turns, or a turn that is a hold from then on.
func (l *turnList) leavesHolds(now time.Time) bool {
	passed := uint64(now.UnixMicro())
	holds := l.holdsBefore
	for _, t := range l.turns {
		if t.at > passed {
			return false
		}
		holds = holds || t.id > 0 && t.end > passed
	}
	return holds
}
