package goredis

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/redisstore"
)

// A lonelyServer replies "x" to each command of its connections, which are pipes.
type lonelyServer struct {
	mute  atomic.Value // the name of a command that gets no reply, or "all" if none is read
	dials atomic.Int64
}

func (s *lonelyServer) dial(context.Context, string, string) (net.Conn, error) {
	s.dials.Add(1)
	client, server := net.Pipe()
	go s.serve(server)
	return client, nil
}

func (s *lonelyServer) serve(c net.Conn) {
	defer c.Close()
	r := bufio.NewReader(c)
	for {
		if s.mute.Load() == "all" {
			time.Sleep(time.Minute)
			return
		}
		name, err := readCommand(r)
		if err != nil {
			return
		}
		if name == s.mute.Load() {
			continue
		}
		reply := "$1\r\nx\r\n"
		if name == "hello" {
			reply = "-ERR unknown command 'hello'\r\n"
		}
		_, _ = io.WriteString(c, reply)
	}
}

// readCommand reads a command, and returns its name.
func readCommand(r *bufio.Reader) (name string, err error) {
	var words int
	if _, err := fmt.Fscanf(r, "*%d\r\n", &words); err != nil {
		return "", err
	}
	for i := range words {
		var length int
		if _, err := fmt.Fscanf(r, "$%d\r\n", &length); err != nil {
			return "", err
		}
		word := make([]byte, length+len("\r\n"))
		if _, err := io.ReadFull(r, word); err != nil {
			return "", err
		}
		if i == 0 {
			name = strings.ToLower(string(word[:length]))
		}
	}
	return name, nil
}

// onLonely runs a test with a client of a lonelyServer. The test makes the Conn.
func onLonely(
	t *testing.T, test func(t *testing.T, s *lonelyServer, client *redis.Client),
) {
	synctest.Test(t, func(t *testing.T) {
		s := &lonelyServer{}
		client := redis.NewClient(&redis.Options{
			Addr: "192.0.2.1:6379", Dialer: s.dial, DisableIdentity: true,
		})
		test(t, s, client)
		require.NoError(t, client.Close())
		time.Sleep(2 * time.Minute) // connections end
	})
}

var prompted = redisstore.Command{Words: []string{"GET", "k"}, Key: 1}

// ask sends a prompt command whose context ends after a time.
func ask(conn redisstore.Conn, ends, within time.Duration) (redisstore.Reply, time.Duration) {
	ctx, cancel := context.WithCancel(context.Background())
	timer := time.AfterFunc(ends, cancel)
	defer timer.Stop()
	begin := time.Now()
	reply := conn.(redisstore.PromptConn).DoPromptly(ctx, prompted, within)
	return reply, time.Since(begin)
}

const ms = time.Millisecond

// A prompt command returns when its context ends, whatever it waits for. The next command has
// another connection.
func TestPrompt(t *testing.T) {
	for _, mute := range []string{"get", "hello", "all"} {
		onLonely(t, func(t *testing.T, s *lonelyServer, client *redis.Client) {
			conn := NewConn(client)
			s.mute.Store(mute)
			reply, took := ask(conn, 10*ms, time.Hour)
			require.Error(t, reply.Err, mute)
			assert.Equal(t, 10*ms, took, mute)

			s.mute.Store("")
			for range 3 {
				reply, _ = ask(conn, time.Hour, time.Hour)
				require.Equal(t, redisstore.Reply{Text: "x"}, reply, mute)
			}
			assert.EqualValues(t, 2, s.dials.Load(), mute)
			assert.Empty(t, conn.(*promptConn).hook.trips.byZone)
		})
	}
}

// A command that is interrupted while it does not wait for its connection does not wait from then on.
func TestInterruptedBetween(t *testing.T) {
	ts := trips{byZone: map[*time.Location]*trip{}}
	client, server := net.Pipe()
	defer server.Close()
	conn := ts.finder(client)
	interrupted := ts.begin(t.Context(), time.Hour, time.Hour)
	interrupted.interrupt()
	deadline, _ := interrupted.Deadline()
	require.NoError(t, conn.SetDeadline(deadline))
	_, err := conn.Write([]byte("x"))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	_, err = conn.Read(make([]byte, 1))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)

	ts.end(interrupted)
	go io.WriteString(server, "x")
	require.NoError(t, conn.SetDeadline(time.Time{}))
	_, err = conn.Read(make([]byte, 1))
	require.NoError(t, err, "of another command")
}

// A prompt command whose context does not end takes as long as other commands of the client.
func TestPromptWaits(t *testing.T) {
	onLonely(t, func(t *testing.T, s *lonelyServer, client *redis.Client) {
		s.mute.Store("get")
		reply, took := ask(NewConn(client), time.Hour, time.Hour)
		require.ErrorIs(t, reply.Err, os.ErrDeadlineExceeded)
		assert.Equal(t, client.Options().ReadTimeout, took)
	})
}

// On a connection from before NewConn, a command takes a bounded time, and is not interrupted. After
// a reply, the client makes a connection on which commands can be interrupted.
func TestPromptOnOldConnection(t *testing.T) {
	for _, mute := range []string{"get", ""} {
		onLonely(t, func(t *testing.T, s *lonelyServer, client *redis.Client) {
			require.NoError(t, client.Get(t.Context(), "k").Err())
			conn := NewConn(client)
			s.mute.Store(mute)
			reply, took := ask(conn, 10*ms, 50*ms)
			if mute != "" {
				require.Error(t, reply.Err)
				assert.Equal(t, 50*ms, took)
			} else {
				require.NoError(t, reply.Err)
			}
			synctest.Wait()

			s.mute.Store("get")
			_, took = ask(conn, 10*ms, 50*ms)
			assert.Equal(t, 10*ms, took)
			assert.EqualValues(t, 2, s.dials.Load())
		})
	}
}

// Only a client that knows its server, and that sets deadlines, sends prompt commands. Those of a
// cluster or a ring would not pass the hooks of the cluster or the ring.
func TestWhoIsPrompt(t *testing.T) {
	dial := func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("no") }
	single := redis.NewClient(&redis.Options{Dialer: dial})
	auto, err := single.AutoPipeline()
	require.NoError(t, err)
	for client, prompt := range map[redis.UniversalClient]bool{
		single: true,
		auto:   false,
		redis.NewFailoverClient(&redis.FailoverOptions{Dialer: dial}):               true,
		redis.NewClient(&redis.Options{Dialer: dial, ReadTimeout: -1}):              true,
		redis.NewClient(&redis.Options{Dialer: dial, ReadTimeout: -2}):              false,
		redis.NewClient(&redis.Options{Dialer: dial, WriteTimeout: -2}):             false,
		redis.NewClusterClient(&redis.ClusterOptions{Dialer: dial}):                 false,
		redis.NewRing(&redis.RingOptions{Addrs: map[string]string{}, Dialer: dial}): false,
	} {
		defer client.Close()
		_, ok := NewConn(client).(redisstore.PromptConn)
		assert.Equal(t, prompt, ok, "%T", client)
	}
}

// A countingHook counts the commands of a client.
type countingHook struct{ commands atomic.Int64 }

func (*countingHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *countingHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.commands.Add(1)
		return next(ctx, cmd)
	}
}

func (*countingHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// Prompt commands pass the hooks of the client, also those that were added later. Then they are sent
// in another goroutine, and still return when their contexts end.
func TestPromptPassesHooks(t *testing.T) {
	onLonely(t, func(t *testing.T, s *lonelyServer, client *redis.Client) {
		var before, after countingHook
		client.AddHook(&before)
		conn, another := NewConn(client), NewConn(client)
		for n, c := range []redisstore.Conn{conn, another} {
			reply, _ := ask(c, time.Hour, time.Hour)
			require.NoError(t, reply.Err)
			assert.EqualValues(t, n+1, before.commands.Load())
			assert.False(t, c.(*promptConn).hook.covered.Load(), "by the other Conn")
		}
		require.NoError(t, client.Watch(t.Context(), func(*redis.Tx) error { return nil }, "k"))
		assert.False(t, conn.(*promptConn).hook.covered.Load(), "by a transaction")

		client.AddHook(&after)
		sent := before.commands.Load()
		for n, c := range []redisstore.Conn{conn, another} {
			reply, _ := ask(c, time.Hour, time.Hour)
			require.NoError(t, reply.Err)
			assert.EqualValues(t, n+1, before.commands.Load()-sent)
			assert.EqualValues(t, n+1, after.commands.Load())
		}
		s.mute.Store("get")
		_, took := ask(conn, 10*ms, time.Hour)
		assert.Equal(t, 10*ms, took)
	})
}

// A client is not harmed by a hook that panics.
func TestPromptPanics(t *testing.T) {
	onLonely(t, func(t *testing.T, s *lonelyServer, client *redis.Client) {
		client.AddHook(&panickingHook{})
		conn := NewConn(client)
		assert.Panics(t, func() { ask(conn, time.Hour, time.Hour) })
		assert.Empty(t, conn.(*promptConn).hook.trips.byZone)
	})
}

type panickingHook struct{ countingHook }

func (*panickingHook) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(context.Context, redis.Cmder) error { panic("a hook") }
}
