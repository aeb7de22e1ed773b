package benchmarks

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/ratelimit-go/ratelimit/benchmarks/peers"
)

// BenchmarkHTTP sends one request again and again through middleware with the limiter's own header
// fields, and checks whether it reaches the handler.
func BenchmarkHTTP(b *testing.B) {
	for _, answer := range []struct {
		name  string
		limit peers.Limit
	}{{"allowed", peers.Plenty}, {"denied", peers.Once}} {
		for _, p := range peers.All() {
			if p.Middleware == nil || p.Name == "floor" && answer.name == "denied" {
				continue
			}
			b.Run(answer.name+"/peer="+p.Name, func(b *testing.B) {
				reached := false
				handler := p.Middleware(answer.limit)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached = true }))
				request := httptest.NewRequestWithContext(b.Context(), http.MethodGet, "/", nil)
				request.RemoteAddr = "192.0.2.1:1234"
				response := silence{http.Header{}}
				handler.ServeHTTP(response, request) // spends the limit of those that are denied
				b.ReportAllocs()
				for b.Loop() {
					reached = false
					clear(response.header)
					handler.ServeHTTP(response, request)
					if reached != (answer.name == "allowed") {
						b.Fatal("wrong answer")
					}
				}
			})
		}
	}
}

// silence is a ResponseWriter that discards the response.
type silence struct{ header http.Header }

func (s silence) Header() http.Header       { return s.header }
func (silence) Write(p []byte) (int, error) { return len(p), nil }
func (silence) WriteHeader(int)             {}
