package redis_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// readValue returns the bytes of the next value of Redis's protocol, a request or a reply,
// including the values it contains.
func readValue(r *bufio.Reader) ([]byte, error) {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return nil, err
	}
	number := func() int {
		n, convErr := strconv.Atoi(string(bytes.TrimSpace(line[1:])))
		if convErr != nil {
			err = fmt.Errorf("%q: %w", line, convErr)
		}
		return n
	}
	var values int
	switch line[0] {
	case '$', '!', '=': // the length of a string in bytes; negative for none
		if n := number(); err == nil && n >= 0 {
			body := make([]byte, n+2)
			_, err = io.ReadFull(r, body)
			line = append(line, body...)
		}
	case '*', '~', '>': // the number of values
		values = number()
	case '%': // the number of pairs
		values = 2 * number()
	case '|': // the number of pairs, and the value that they describe
		values = 2*number() + 1
	}
	for ; err == nil && values > 0; values-- {
		var value []byte
		value, err = readValue(r)
		line = append(line, value...)
	}
	return line, err
}

// isPush reports whether a value from a server is not the reply to a request.
func isPush(value []byte) bool { return value[0] == '>' }

// commandOf returns the name of a request's command, in lower case.
func commandOf(request []byte) string {
	parts := bytes.SplitN(request, []byte("\r\n"), 4) // *2 $4 name ...
	if len(parts) < 4 {
		return ""
	}
	return strings.ToLower(string(parts[2]))
}
