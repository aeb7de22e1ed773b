package servers

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/redisstore"
)

const (
	spin = "while true do end"
	incr = "return tostring(redis.call('INCR', KEYS[1]))"
	soon = 5 * time.Second // a generous bound of what takes a tenth of a second
)

// Each adapter keeps what [redisstore.Conn] says, with a client whose options are the
// defaults.
func TestContract(t *testing.T) {
	for name, connect := range connectors {
		for what, test := range map[string]func(*testing.T, connector){
			"bytes":       testBytes,
			"sha":         testSha,
			"error reply": testErrorReply,
			"del":         testDel,
			"ended":       testEnded,
			"deadline":    testDeadline,
			"canceled":    testCanceled,
			"many":        testMany,
			"dialing":     testDialing,
			"lost reply":  testLostReply,
		} {
			t.Run(name+"/"+what, func(t *testing.T) {
				t.Parallel()
				test(t, connect)
			})
		}
	}
}

// contexts are the two ways of a call: one that may be abandoned, and one that may
// not.
func contexts(t *testing.T) map[string]context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return map[string]context.Context{"timeout": ctx, "background": context.Background()}
}

func testBytes(t *testing.T, connect connector) {
	c := connect(t, startServer(t).addr())
	odd := "\x00\xff\r\n\xc3\x28 "
	for name, ctx := range contexts(t) {
		reply, err := c.Eval(ctx, "return KEYS[1] .. '|' .. ARGV[1] .. '|' .. ARGV[2]", odd, []string{odd + "1", ""})
		require.NoError(t, err, name)
		assert.Equal(t, odd+"|"+odd+"1|", reply, name)
	}
}

func testSha(t *testing.T, connect connector) {
	c := connect(t, startServer(t).addr())
	for name, ctx := range contexts(t) {
		_, err := c.EvalSha(ctx, strings.Repeat("0", 40), "k", nil)
		require.Error(t, err, name)
		assert.True(t, strings.HasPrefix(err.Error(), "NOSCRIPT "), "%s: %v", name, err)
	}
	const script = "return 'x'"
	_, err := c.Eval(t.Context(), script, "k", nil)
	require.NoError(t, err)
	sum := sha1.Sum([]byte(script))
	reply, err := c.EvalSha(t.Context(), hex.EncodeToString(sum[:]), "k", nil)
	require.NoError(t, err)
	assert.Equal(t, "x", reply)
}

func testErrorReply(t *testing.T, connect connector) {
	c := connect(t, startServer(t).addr())
	for _, text := range []string{"ERR of mine", "WRONGTYPE of mine", "NOAUTH of mine"} {
		_, err := c.Eval(t.Context(), "return redis.error_reply('"+text+"')", "k", nil)
		assert.EqualError(t, err, text)
	}
}

func testDel(t *testing.T, connect connector) {
	s := startServer(t)
	c := connect(t, s.addr())
	_, err := c.Eval(t.Context(), incr, "k", nil)
	require.NoError(t, err)
	require.NoError(t, c.Del(t.Context(), "k"))
	require.NoError(t, c.Del(t.Context(), "k"))
	assert.Equal(t, 0, counted(t, s, "k"))
}

// counted returns how often a counter was incremented.
func counted(t *testing.T, s *server, key string) int {
	t.Helper()
	return int(s.do("INCRBY", key, 0).(int64))
}

func testEnded(t *testing.T, connect connector) {
	s := startServer(t)
	c := connect(t, s.addr())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := c.Eval(ctx, incr, "k", nil)
	require.ErrorIs(t, err, context.Canceled)
	assert.Equal(t, 0, counted(t, s, "k"), "sent in spite of its context")
}

// connectHanging is for a test whose script does not end: its server ends before the
// client is closed, which may wait for it.
func connectHanging(t *testing.T, connect connector) redisstore.Conn {
	s := startServer(t)
	c := connect(t, s.addr())
	t.Cleanup(s.kill)
	return c
}

// abandoned says that call returned at its context's end.
func abandoned(t *testing.T, ctx context.Context, c redisstore.Conn) {
	t.Helper()
	start := time.Now()
	_, err := c.Eval(ctx, spin, "k", nil)
	assert.ErrorIs(t, err, ctx.Err())
	assert.Error(t, ctx.Err(), "returned before its context ended")
	assert.Less(t, time.Since(start), soon)
}

func testDeadline(t *testing.T, connect connector) {
	c := connectHanging(t, connect)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	abandoned(t, ctx, c)
}

func testCanceled(t *testing.T, connect connector) {
	c := connectHanging(t, connect)
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	time.AfterFunc(100*time.Millisecond, cancel)
	abandoned(t, ctx, c)
}

// testMany has more calls hang than a pool has connections and a pipeline room.
func testMany(t *testing.T, connect connector) {
	c := connectHanging(t, connect)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	const calls = 6000
	errs := make(chan error, calls)
	start := time.Now()
	for range calls {
		go func() {
			_, err := c.Eval(ctx, spin, "k", nil)
			errs <- err
		}()
	}
	for range calls {
		assert.ErrorIs(t, <-errs, context.DeadlineExceeded)
	}
	assert.Less(t, time.Since(start), 2*soon)
}

// testDialing has connections lead nowhere after the first is lost.
func testDialing(t *testing.T, connect connector) {
	p := startProxy(t, startServer(t).addr())
	c := connect(t, p.addr())
	t.Cleanup(p.release)
	_, err := c.Eval(t.Context(), incr, "k", nil)
	require.NoError(t, err)
	p.hold()
	p.cutAfterRequest("eval")
	_, err = c.Eval(t.Context(), incr, "k", nil)
	require.Error(t, err)

	long, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	go c.Eval(long, incr, "k", nil) //nolint:errcheck // it dials, perhaps on behalf of the next
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	abandoned(t, ctx, c)
}

func testLostReply(t *testing.T, connect connector) {
	s := startServer(t)
	p := startProxy(t, s.addr())
	c := connect(t, p.addr())
	for name, ctx := range contexts(t) {
		_, err := c.Eval(ctx, incr, name, nil)
		require.NoError(t, err)
		p.cutAfterRequest("eval")
		_, err = c.Eval(ctx, incr, name, nil)
		require.Error(t, err, name)
		assert.Equal(t, 2, counted(t, s, name), "%s: carried out again", name)
	}
}
