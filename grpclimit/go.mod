module github.com/ratelimit-go/ratelimit/grpclimit

go 1.26.0

require (
	github.com/benbjohnson/clock v1.3.5
	github.com/ratelimit-go/ratelimit v0.0.0
	github.com/stretchr/testify v1.12.1
	google.golang.org/genproto/googleapis/rpc v0.0.0-20261110000943-09e21b237f2c
	google.golang.org/grpc v1.85.0
	google.golang.org/protobuf v1.36.12
)

require (
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/net v0.60.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
	golang.org/x/text v0.42.0 // indirect
)

replace github.com/ratelimit-go/ratelimit => ../
