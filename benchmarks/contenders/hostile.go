package contenders

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
)

// Only429 is the name of the contender that refuses every request without reading it.
const Only429 = "(only 429)"

// httplimitHostile refuses requests that are as expensive as we could make them, from a
// trusted address.
func httplimitHostile() Contender {
	var stop func()
	return Contender{
		Name:   "httplimit, hostile requests",
		Role:   Main,
		Wire:   true,
		Module: ModulePath,
		Setup:  "`Middleware` by `ClientIP(TrustedProxies(…), FromForwarded())`, which trusts all proxies that a request names, with a `TokenBucket`",
		New: func(l Limit) (allow Allow, err error) {
			limiter, err := ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.Every(l.Every), Burst: l.Burst})
			if err != nil {
				return nil, err
			}
			key := httplimit.ClientIP(httplimit.TrustedProxies(netip.MustParsePrefix("127.0.0.0/8")), httplimit.FromForwarded())
			empty := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
			allow, stop, err = overHTTP2(httplimit.Middleware(limiter, httplimit.WithKey(key))(empty))
			return allow, err
		},
		Stop: func() { stop() },
	}
}

func only429() Contender {
	var stop func()
	return Contender{
		Name:  Only429,
		Role:  Floor,
		Wire:  true,
		Setup: "a handler that only answers 429, with the same requests",
		Always: func(Answer) Allow {
			handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTooManyRequests) })
			var allow Allow
			var err error
			if allow, stop, err = overHTTP2(handler); err != nil {
				stop = func() {}
				return func(string) Answer { return Failed }
			}
			return allow
		},
		Stop: func() { stop() },
	}
}

// hostileFields are 480 header fields of 2 kB, together almost the 1 MB that net/http
// accepts. They are two different fields, which fit into HPACK's table of 4 kB, so that
// each field but the first two is one byte on the wire.
func hostileFields() (fields []hpack.HeaderField) {
	accept := strings.Repeat("a;b*0=c,", 240)
	forwarded := `for=127.0.0.1;host="` + strings.Repeat(",", 1900) + `"`
	for range 240 {
		fields = append(fields, hpack.HeaderField{Name: "accept", Value: accept}, hpack.HeaderField{Name: "forwarded", Value: forwarded})
	}
	return fields
}

// overHTTP2 returns an Allow that sends hostile requests one after the other to a server
// with this handler, over a loopback connection, and a function that closes both. The
// client does as little as possible, because the server is to be measured.
func overHTTP2(handler http.Handler) (_ Allow, stop func(), _ error) {
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	server := &http.Server{Handler: handler, Protocols: new(http.Protocols)}
	server.Protocols.SetUnencryptedHTTP2(true)
	go func() { _ = server.Serve(listener) }() // returns an error when it is closed
	conn, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", listener.Addr().String())
	if err != nil {
		server.Close()
		return nil, nil, err
	}
	c := &hostileClient{conn: conn, framer: http2.NewFramer(conn, conn), stream: 1}
	c.encoder = hpack.NewEncoder(&c.block)
	c.fields = append([]hpack.HeaderField{
		{Name: ":method", Value: "GET"}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: "/"}, {Name: ":authority", Value: "x"},
	}, hostileFields()...)
	if err := c.begin(); err != nil {
		server.Close()
		return nil, nil, err
	}
	return func(string) Answer {
		status, err := c.ask()
		if err != nil || status != http.StatusOK && status != http.StatusTooManyRequests {
			return Failed
		}
		return answer(status == http.StatusOK)
	}, func() { conn.Close(); server.Close() }, nil
}

// A hostileClient sends the same request repeatedly.
type hostileClient struct {
	conn    net.Conn
	framer  *http2.Framer
	encoder *hpack.Encoder
	block   bytes.Buffer
	fields  []hpack.HeaderField
	stream  uint32
	decoder *hpack.Decoder
	status  int
}

func (c *hostileClient) begin() error {
	c.decoder = hpack.NewDecoder(4096, func(f hpack.HeaderField) {
		if f.Name == ":status" {
			c.status, _ = strconv.Atoi(f.Value)
		}
	})
	if _, err := io.WriteString(c.conn, http2.ClientPreface); err != nil {
		return err
	}
	if err := c.framer.WriteSettings(); err != nil {
		return err
	}
	return c.framer.WriteWindowUpdate(0, 1<<31-1-65535) // enough for every answer
}

// ask sends the request and returns the status of the response.
func (c *hostileClient) ask() (status int, err error) {
	c.block.Reset()
	for _, f := range c.fields {
		if err := c.encoder.WriteField(f); err != nil {
			return 0, err
		}
	}
	const most = 16384 // bytes in a frame
	block := c.block.Bytes()
	first := block[:min(len(block), most)]
	err = c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: c.stream, BlockFragment: first, EndStream: true, EndHeaders: len(first) == len(block)})
	for block = block[len(first):]; err == nil && len(block) > 0; {
		next := block[:min(len(block), most)]
		block = block[len(next):]
		err = c.framer.WriteContinuation(c.stream, len(block) == 0, next)
	}
	if err != nil {
		return 0, err
	}
	for {
		frame, err := c.framer.ReadFrame()
		if err != nil {
			return 0, err
		}
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				err = c.framer.WriteSettingsAck()
			}
		case *http2.HeadersFrame:
			_, err = c.decoder.Write(frame.HeaderBlockFragment())
		case *http2.GoAwayFrame, *http2.RSTStreamFrame:
			err = fmt.Errorf("the server has closed the stream or the connection: %v", frame)
		}
		if err != nil {
			return 0, err
		}
		if h := frame.Header(); h.StreamID == c.stream && h.Flags.Has(http2.FlagDataEndStream) && (h.Type == http2.FrameData || h.Type == http2.FrameHeaders) {
			c.stream += 2
			return c.status, nil
		}
	}
}
