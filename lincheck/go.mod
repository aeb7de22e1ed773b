module github.com/ratelimit-go/ratelimit/lincheck

go 1.26

require (
	github.com/anishathalye/porcupine v1.3.1
	github.com/ratelimit-go/ratelimit v0.0.0
)

require github.com/benbjohnson/clock v1.3.5 // indirect

replace github.com/ratelimit-go/ratelimit => ../
