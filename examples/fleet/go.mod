module github.com/ratelimit-go/ratelimit/examples/fleet

go 1.26.0

require (
	github.com/ratelimit-go/ratelimit v0.0.0
	github.com/ratelimit-go/ratelimit/redisstore/rueidis v0.0.0
	github.com/redis/rueidis v1.0.79
)

require (
	github.com/benbjohnson/clock v1.3.5 // indirect
	github.com/sony/gobreaker/v2 v2.4.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
)

replace (
	github.com/ratelimit-go/ratelimit => ../../
	github.com/ratelimit-go/ratelimit/redisstore/rueidis => ../../redisstore/rueidis
)
