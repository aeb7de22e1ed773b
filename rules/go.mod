module github.com/ratelimit-go/ratelimit/rules

go 1.26.0

require (
	github.com/benbjohnson/clock v1.3.5
	github.com/ratelimit-go/ratelimit v0.0.0
	github.com/stretchr/testify v1.12.1
	go.yaml.in/yaml/v3 v3.0.6
)

replace github.com/ratelimit-go/ratelimit => ../
