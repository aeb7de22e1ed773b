module github.com/ratelimit-go/ratelimit/httplimit/fields

go 1.26.0

require github.com/ratelimit-go/ratelimit v0.0.0

require (
	github.com/benbjohnson/clock v1.3.5 // indirect
	github.com/dunglas/httpsfv v1.1.2
)

replace github.com/ratelimit-go/ratelimit => ../../
