package iolimit_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/iolimit"
)

// Each user downloads at most a MiB a second, after a burst of 256 KiB, over all of the
// user's connections.
func Example() {
	ctx, userID := context.Background(), "alice"
	begin, dst := time.Now(), new(bytes.Buffer)
	src := strings.NewReader(strings.Repeat("x", 300<<10))

	limiter := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{
		Rate:  ratelimit.PerSecond(1 << 20),
		Burst: 256 << 10,
	}))
	n, err := io.Copy(dst, iolimit.Reader(ctx, src, ratelimit.For(limiter, userID)))

	// 44 KiB remain after the burst.
	fmt.Println(n, err, time.Since(begin) > 40*time.Millisecond)
	// Output: 307200 <nil> true
}

// A client that downloads at most 10 MB a second, over all of its connections.
func ExampleConn() {
	limiter := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10_000_000), Burst: 1_000_000}))
	var dialer net.Dialer
	client := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := dialer.DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return iolimit.Conn(c, ratelimit.For(limiter, "downloads"), ratelimit.Bound{}), nil
		},
	}}
	_ = client
}
