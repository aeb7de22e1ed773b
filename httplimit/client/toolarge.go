package client

import "strings"

// IsTooLarge reports whether text is the message of an error that says ResourceExhausted because a
// message was too large, and not because of a limit: gRPC and Connect have one code for both. It
// knows the texts of the libraries for Go, C++, Java and .NET, and is for packages such as
// grpclimit and connectlimit, which do not hold calls back then.
func IsTooLarge(text string) bool {
	for _, sign := range []string{
		"larger than", "too large", "message size", "maximum size", "MaxBytes",
	} {
		if strings.Contains(text, sign) {
			return true
		}
	}
	return false
}
