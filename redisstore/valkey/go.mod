module github.com/ratelimit-go/ratelimit/redisstore/valkey

go 1.26.0

require (
	github.com/ratelimit-go/ratelimit v0.0.0
	github.com/stretchr/testify v1.12.1
	github.com/valkey-io/valkey-go v1.0.79
)

require (
	github.com/benbjohnson/clock v1.3.5 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/sys v0.47.0 // indirect
)

replace github.com/ratelimit-go/ratelimit => ../..
