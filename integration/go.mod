module github.com/ratelimit-go/ratelimit/integration

go 1.26.0

require (
	github.com/benbjohnson/clock v1.3.5
	github.com/ratelimit-go/ratelimit v0.0.0
	github.com/ratelimit-go/ratelimit/redisstore/goredis v0.0.0
	github.com/ratelimit-go/ratelimit/redisstore/rueidis v0.0.0
	github.com/redis/go-redis/v9 v9.23.0
	github.com/redis/rueidis v1.0.79
	github.com/stretchr/testify v1.12.1
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/sony/gobreaker/v2 v2.4.0 // indirect
	go.uber.org/atomic v1.12.0 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/sys v0.48.0 // indirect
)

replace (
	github.com/ratelimit-go/ratelimit => ../
	github.com/ratelimit-go/ratelimit/redisstore/goredis => ../redisstore/goredis
	github.com/ratelimit-go/ratelimit/redisstore/rueidis => ../redisstore/rueidis
)
