package contenders

import (
	"context"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// BareScript is the name of the lower bound of limiters in Redis.
const BareScript = "(bare script)"

// bareText reads the time, gets and sets the key, and decides nothing. Its reply is as long as
// that of a bucket's script.
const bareText = `local call = redis.call
call('TIME')
local value = call('GET', KEYS[1]) or '1234567890123456'
call('PSETEX', KEYS[1], 3600000, '1234567890123456')
return '1234567890123456789012345' .. value`

// bareScript does only what every limiter must do that decides in Redis by its clock: it calls
// a script that reads the time, reads the state of the key, and writes it with a time to
// live. Its key and its argument are as long as those of a bucket.
func bareScript() Contender {
	return Contender{
		Name:   BareScript,
		Role:   Bound,
		Module: RueidisModule,
		Setup:  "`EVALSHA` of a script that only calls `TIME`, `GET` and `PSETEX`, with the key and an argument as long as this library's",
		Dial: func(addr string, _ Limit, _ time.Duration) (Allow, func(), error) {
			client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}})
			if err != nil {
				return nil, nil, err
			}
			ctx := context.Background()
			sha, err := client.Do(ctx, client.B().ScriptLoad().Script(bareText).Build()).ToString()
			if err != nil {
				client.Close()
				return nil, nil, err
			}
			argument := strings.Repeat("x", 70)
			return func(key string) Answer {
				command := client.B().Evalsha().Sha1(sha).Numkeys(1).Key("rl:@yiZnfI1:" + key).Arg(argument).Build()
				if err := client.Do(ctx, command).Error(); err != nil {
					return Failed
				}
				return Allowed
			}, client.Close, nil
		},
	}
}
