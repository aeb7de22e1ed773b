module github.com/ratelimit-go/ratelimit/connectlimit

go 1.26.0

require (
	connectrpc.com/connect v1.21.1
	github.com/ratelimit-go/ratelimit v0.0.0
	github.com/stretchr/testify v1.12.1
	google.golang.org/genproto/googleapis/rpc v0.0.0-20261110000943-09e21b237f2c
	google.golang.org/protobuf v1.36.12
)

require (
	github.com/benbjohnson/clock v1.3.5
	go.yaml.in/yaml/v3 v3.0.5 // indirect
)

replace github.com/ratelimit-go/ratelimit => ../
