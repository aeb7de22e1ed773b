package redis_test

import (
	"context"
	"crypto/sha1"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/redisstore"
	"github.com/ratelimit-go/ratelimit/redisstore/goredis"
)

const incr = "return tostring(redis.call('INCR', KEYS[1]))"

// Each adapter fulfills the contract of [redisstore.Conn] for a client with default options.
func TestContract(t *testing.T) {
	for name, connect := range connectors {
		for what, test := range map[string]func(*testing.T, connector){
			"bytes":         testBytes,
			"sha":           testSha,
			"error reply":   testErrorReply,
			"del":           testDel,
			"ended":         testEnded,
			"lost reply":    testLostReply,
			"together":      testTogether,
			"batch":         testBatch,
			"lost together": testLostTogether,
		} {
			t.Run(name+"/"+what, func(t *testing.T) {
				t.Parallel()
				test(t, connect)
			})
		}
	}
}

// contexts are the two kinds of contexts: one that may end, and one that does not.
func contexts(t *testing.T) map[string]context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return map[string]context.Context{"timeout": ctx, "background": context.Background()}
}

// do sends one command, and returns its outcome.
func do(ctx context.Context, c redisstore.Conn, key int, words ...string) (string, error) {
	reply := c.Do(ctx, []redisstore.Command{{Words: words, Key: key}})[0]
	return reply.Text, reply.Err
}

func eval(ctx context.Context, c redisstore.Conn, script, key string, args ...string) (string, error) {
	return do(ctx, c, 3, append([]string{"EVAL", script, "1", key}, args...)...)
}

func evalSha(ctx context.Context, c redisstore.Conn, sha, key string) (string, error) {
	return do(ctx, c, 3, "EVALSHA", sha, "1", key)
}

func testBytes(t *testing.T, connect connector) {
	c := connect(t, startServer(t).addr())
	odd := "\x00\xff\r\n\xc3\x28 "
	for name, ctx := range contexts(t) {
		reply, err := eval(ctx, c, "return KEYS[1] .. '|' .. ARGV[1] .. '|' .. ARGV[2]", odd, odd+"1", "")
		require.NoError(t, err, name)
		assert.Equal(t, odd+"|"+odd+"1|", reply, name)
	}
}

func testSha(t *testing.T, connect connector) {
	c := connect(t, startServer(t).addr())
	for name, ctx := range contexts(t) {
		_, err := evalSha(ctx, c, strings.Repeat("0", 40), "k")
		require.Error(t, err, name)
		assert.True(t, strings.HasPrefix(err.Error(), "NOSCRIPT "), "%s: %v", name, err)
	}
	const script = "return 'x'"
	_, err := eval(t.Context(), c, script, "k")
	require.NoError(t, err)
	sum := sha1.Sum([]byte(script))
	reply, err := evalSha(t.Context(), c, hex.EncodeToString(sum[:]), "k")
	require.NoError(t, err)
	assert.Equal(t, "x", reply)
}

func testErrorReply(t *testing.T, connect connector) {
	c := connect(t, startServer(t).addr())
	for _, text := range []string{"ERR of mine", "WRONGTYPE of mine", "NOAUTH of mine"} {
		_, err := eval(t.Context(), c, "return redis.error_reply('"+text+"')", "k")
		assert.EqualError(t, err, text)
	}
}

func testDel(t *testing.T, connect connector) {
	s := startServer(t)
	c := connect(t, s.addr())
	_, err := eval(t.Context(), c, incr, "k")
	require.NoError(t, err)
	_, err = do(t.Context(), c, 1, "DEL", "k")
	require.NoError(t, err)
	_, err = do(t.Context(), c, 1, "DEL", "k")
	require.NoError(t, err)
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
	_, err := eval(ctx, c, incr, "k")
	require.ErrorIs(t, err, context.Canceled)
	assert.Equal(t, 0, counted(t, s, "k"), "sent in spite of its context")
}

func testLostReply(t *testing.T, connect connector) {
	s := startServer(t)
	p := startProxy(t, s.addr())
	c := connect(t, p.addr())
	for name, ctx := range contexts(t) {
		_, err := eval(ctx, c, incr, name)
		require.NoError(t, err)
		p.cutAfterRequest("eval")
		_, err = eval(ctx, c, incr, name)
		require.Error(t, err, name)
		assert.Equal(t, 2, counted(t, s, name), "%s: executed again", name)
	}
}

// testTogether sends commands on many keys at once, and each gets its own answer.
func testTogether(t *testing.T, connect connector) {
	c := connect(t, startServer(t).addr())
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			if i%10 == 3 {
				_, err := eval(t.Context(), c, "return redis.error_reply('ERR ' .. KEYS[1])", fmt.Sprint(i))
				assert.EqualError(t, err, fmt.Sprint("ERR ", i))
				return
			}
			reply, err := eval(t.Context(), c, "return KEYS[1] .. ARGV[1]", fmt.Sprint(i), "x")
			assert.NoError(t, err)
			assert.Equal(t, fmt.Sprint(i, "x"), reply)
		})
	}
	wg.Wait()
}

// testBatch sends commands in one call: the server executes them in their order, and each has its
// own reply.
func testBatch(t *testing.T, connect connector) {
	s := startServer(t)
	c := connect(t, s.addr())
	script := "return redis.call('INCR', KEYS[1]) .. ARGV[1]"
	sum := sha1.Sum([]byte(script))
	sha := hex.EncodeToString(sum[:])
	commands := []redisstore.Command{{Words: []string{"EVALSHA", sha, "1", "k", "a"}, Key: 3}}
	commands = append(commands, redisstore.Command{
		Words: []string{"EVAL", script, "1", "k", "b"}, Key: 3,
	})
	const many = 300
	for range many {
		commands = append(commands, redisstore.Command{
			Words: []string{"EVALSHA", sha, "1", "k", "c"}, Key: 3,
		})
	}
	replies := c.Do(t.Context(), commands)
	require.Len(t, replies, len(commands))
	assert.ErrorContains(t, replies[0].Err, "NOSCRIPT", "the server learns the script by the next")
	assert.Equal(t, "1b", replies[1].Text)
	for i, reply := range replies[2:] {
		require.NoError(t, reply.Err)
		require.Equal(t, fmt.Sprintf("%dc", i+2), reply.Text)
	}
	assert.Equal(t, 1+many, counted(t, s, "k"))

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, reply := range c.Do(ctx, commands) {
		require.ErrorIs(t, reply.Err, context.Canceled)
	}
	assert.Equal(t, 1+many, counted(t, s, "k"), "sent in spite of the context")
}

// testLostTogether cuts the connection of many commands. None is executed twice.
func testLostTogether(t *testing.T, connect connector) {
	s := startServer(t)
	p := startProxy(t, s.addr())
	c := connect(t, p.addr())
	_, err := eval(t.Context(), c, incr, "first")
	require.NoError(t, err)
	p.cutAfterRequest("eval")
	const commands = 100
	var errs [commands]error
	var wg sync.WaitGroup
	for i := range commands {
		wg.Go(func() { _, errs[i] = eval(context.Background(), c, incr, fmt.Sprint(i)) })
	}
	wg.Wait()
	lost := 0
	for i, err := range errs {
		times := counted(t, s, fmt.Sprint(i))
		if err == nil {
			assert.Equal(t, 1, times, "%d was answered", i)
		} else {
			lost++
			assert.LessOrEqual(t, times, 1, "%d was not answered: %v", i, err)
		}
	}
	assert.Positive(t, lost)
}

// With go-redis, commands that wait because all connections are in use are sent later, unless
// their contexts have ended.
func TestWaitingForConnection(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	p := startProxy(t, s.addr())
	c := connectors["goredis, RESP2, one connection"](t, p.addr())
	_, err := eval(t.Context(), c, incr, "first")
	require.NoError(t, err)
	p.hold()
	var wg sync.WaitGroup
	for range 300 {
		wg.Go(func() {
			_, err := eval(context.Background(), c, incr, "patient")
			assert.NoError(t, err)
		})
	}
	eventually(t, "a reply is held back", func() bool { return p.holding() > 0 })
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := eval(ctx, c, incr, "hasty")
		left <- err
	}()
	runtime.Gosched() // most likely it waits now
	cancel()
	assert.ErrorIs(t, <-left, context.Canceled, "while nothing is answered")
	p.release()
	wg.Wait()
	assert.Equal(t, 300, counted(t, s, "patient"))
	assert.Equal(t, 0, counted(t, s, "hasty"))
}

// With go-redis, a prompt command ends with its context while the server hangs, although the client
// waits for any time. When the server goes on, so does the client.
func TestPromptCommands(t *testing.T) {
	t.Parallel()
	cert, key, pool := certificate(t)
	port := freePort(t)
	s := startServer(t, "--tls-port", strconv.Itoa(port), "--tls-cert-file", cert, "--tls-key-file", key,
		"--tls-ca-cert-file", cert, "--tls-auth-clients", "no")
	for name, o := range map[string]redis.Options{
		"RESP3":                 {Addr: s.addr()},
		"RESP2, one connection": {Addr: s.addr(), Protocol: 2, PoolSize: 1},
		"TLS":                   {Addr: local(port), TLSConfig: &tls.Config{RootCAs: pool, ServerName: "redis.test"}},
	} {
		o.ReadTimeout = -1
		client := redis.NewClient(&o)
		t.Cleanup(func() { client.Close() })
		conn := goredis.NewConn(client).(redisstore.PromptConn)
		count := redisstore.Command{Words: []string{"EVAL", incr, "1", name}, Key: 3}
		for n := range 3 {
			reply := conn.DoPromptly(t.Context(), count, patient)
			require.NoError(t, reply.Err, name)
			require.Equal(t, fmt.Sprint(2*n+1), reply.Text, name)
			s.stop()
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			reply = conn.DoPromptly(ctx, count, patient)
			cancel()
			require.Error(t, reply.Err, name)
			s.cont()
			eventually(t, "the server has executed what it got", func() bool { return counted(t, s, name) == 2*n+2 })
		}
	}
}
