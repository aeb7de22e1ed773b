module github.com/ratelimit-go/ratelimit/sqlstore

go 1.26.0

require (
	github.com/benbjohnson/clock v1.3.5
	github.com/ratelimit-go/ratelimit v0.0.0
	github.com/stretchr/testify v1.12.1
)

require go.yaml.in/yaml/v3 v3.0.5 // indirect

replace github.com/ratelimit-go/ratelimit => ../
