package peers

import (
	"context"
	"hash/maphash"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
)

// floor is no limiter: it does only what every exact limiter must do. In memory it hashes the key, loads
// a word, reads the clock and swaps the word. In Redis it calls a script that reads the time, and reads
// and writes the key, with a key and an argument as long as this library's.
func floor() Peer {
	return Peer{
		Name: "floor",
		Memory: func(l Limit) (Allow, error) {
			seed, base, words := maphash.MakeSeed(), time.Now(), make([]uint64, 1<<22)
			return func(key string) (bool, error) {
				word := &words[maphash.String(seed, key)%uint64(len(words))]
				old := atomic.LoadUint64(word)
				now := uint64(time.Since(base)) | 1 // 0 is a key that is new
				if old != 0 && l == Once {
					return false, nil
				}
				atomic.CompareAndSwapUint64(word, old, now)
				return true, nil
			}, nil
		},
		Middleware: func(Limit) func(http.Handler) http.Handler {
			return func(next http.Handler) http.Handler { return next }
		},
		Redis: map[string]Dial{
			"floor":         floorGoRedis,
			"floor-auto":    floorAuto,
			"floor-rueidis": floorRueidis,
		},
	}
}

const bareText = `redis.call('TIME')
local value = redis.call('GET', KEYS[1]) or '1234567890123456'
redis.call('PSETEX', KEYS[1], 3600000, '1234567890123456')
return '1234567890123456789012345' .. value`

// A key and an argument are as long as those of this library.
const barePrefix = "rl:@yiZnfI1:"

var bareArgument = strings.Repeat("x", 70)

func floorGoRedis(at Address, _ Limit) (Allow, func(), error) {
	client := goRedis(at)
	return bareScript(client), func() { _ = client.Close() }, nil
}

func floorAuto(at Address, _ Limit) (Allow, func(), error) {
	client, end, err := goRedisAuto(at, halfDuplex)
	if err != nil {
		return nil, nil, err
	}
	return bareScript(client), end, nil
}

func bareScript(client redis.Scripter) Allow {
	script := redis.NewScript(bareText)
	return func(key string) (bool, error) {
		err := script.Run(context.Background(), client, []string{barePrefix + key}, bareArgument).Err()
		return err == nil, err
	}
}

func floorRueidis(at Address, _ Limit) (Allow, func(), error) {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{at.Addr}})
	if err != nil {
		return nil, nil, err
	}
	script := rueidis.NewLuaScript(bareText)
	return func(key string) (bool, error) {
		err := script.Exec(context.Background(), client, []string{barePrefix + key}, []string{bareArgument}).Error()
		return err == nil, err
	}, client.Close, nil
}
