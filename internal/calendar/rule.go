package calendar

import (
	"fmt"
	"strconv"
	"time"
)

// FirstDay is the Start of a rule that does not say one.
func (u Unit) FirstDay() int {
	switch u {
	case Week, Month:
		return 1
	case Quarter, Year:
		return 101
	}
	return 0
}

// StartError returns what Start must be, or "" if it is valid.
func (r Rule) StartError() string {
	switch month, day := r.Start/100, r.Start%100; r.Every {
	case Day:
		if r.Start != 0 {
			return "must be 0 for a day, which begins at Hour"
		}
	case Week:
		if r.Start < 1 || r.Start > 7 {
			return "must be a day of the week, from 1, Monday, to 7, Sunday, or 0 for 1"
		}
	case Month:
		if r.Start < 1 || r.Start > 31 {
			return "must be a day of the month, from 1 to 31, or 0 for 1"
		}
	default:
		if month < 1 || month > 12 || day < 1 || day > daysIn[month-1] {
			return fmt.Sprintf(
				"must be a day of the %v as month·100 + day, such as 406 for 6 April, or 0 for 101",
				r.Every,
			)
		}
	}
	return ""
}

// daysIn has the days of each month, in a leap year.
var daysIn = [...]int{31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31}

// StartInWords returns when a window begins, such as "the 31st", "6 April" or "Sunday, 04:00". It is
// empty if a window begins with the first midnight of its unit.
func (r Rule) StartInWords() string {
	var text string
	switch {
	case r.Start == r.Every.FirstDay():
	case !r.Every.Valid() || r.StartError() != "":
		text = fmt.Sprintf("Start(%d)", r.Start)
	case r.Every == Week:
		text = time.Weekday(r.Start % 7).String()
	case r.Every == Month:
		text = "the " + ordinal(r.Start)
	default:
		text = fmt.Sprintf("%d %v", r.Start%100, time.Month(r.Start/100))
	}
	if r.Hour == 0 {
		return text
	}
	if text != "" {
		text += ", "
	}
	return text + fmt.Sprintf("%02d:00", r.Hour)
}

// ordinal returns "1st" for 1, and so on.
func ordinal(n int) string {
	end := "th"
	if n/10 != 1 {
		switch n % 10 {
		case 1:
			end = "st"
		case 2:
			end = "nd"
		case 3:
			end = "rd"
		}
	}
	return strconv.Itoa(n) + end
}
