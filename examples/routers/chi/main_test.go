package main

import (
	"testing"

	"github.com/ratelimit-go/ratelimit/examples/routers/routertest"
)

func TestRouter(t *testing.T) { routertest.Run(t, router) }
