package ratelimit_test

import (
	"encoding/hex"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
)

// TestTokensStay: the hash in a token does not change from one version to the next. Otherwise, a
// process of the new version would refuse to settle a hold of a process of the old one, during a
// deployment.
func TestTokensStay(t *testing.T) {
	perSecond := ratelimit.PerSecond(10)
	for want, alg := range map[string]ratelimit.Algorithm{
		"4daa81f2a0952a61724d2b5fd783": ratelimit.TokenBucket{Rate: perSecond},
		"5403c4424647c25b119c9d189c26": ratelimit.TokenBucket{Rate: perSecond, Refill: ratelimit.RefillInterval},
		"8fe1c0dd855822feede5842c1dc9": ratelimit.LeakyBucket{Rate: perSecond, Capacity: 10},
		"e3f5f15d8397ca1a85da1fcb2907": ratelimit.FixedWindow{Limit: 10, Window: time.Hour},
		"83b05d4f5d57dbadcf52be6346bc": ratelimit.SlidingWindow{Limit: 10, Window: time.Hour},
		"afd67c6b4a6f6bc0f5c7f330ac86": ratelimit.RollingWindow{Quota: 10, Window: time.Hour, Period: time.Minute},
		"868cecb509a9b919c152c028b890": ratelimit.SlidingLog{Limit: 10, Window: time.Hour},
		"008cd294b78b9a7877ced9b9e21e": ratelimit.InFlight{Limit: 10, Timeout: time.Hour},
		"21b44524c6ca96227fbfc183558b": ratelimit.WarmingUp{Rate: perSecond, Warmup: time.Second},
		"c83df4aeace29e527a18f7f34427": ratelimit.CalendarWindow{Limit: 10, Every: ratelimit.Month},
		"e88b27fb4fa7402193cba680b578": ratelimit.Lockout{Limit: 10, Window: time.Hour, First: time.Hour},
		"76845afd01ff2c0781f7689386bd": ratelimit.Unlimited{},
		"d08459181497dd3235d95fb41985": ratelimit.All{
			ratelimit.SlidingWindow{Limit: 10, Window: time.Hour},
			ratelimit.InFlight{Limit: 10, Timeout: time.Hour},
		},
	} {
		l := ratelimit.Must(ratelimit.New(alg, fakes.InBytes()...))
		assert.Equal(t, want, hex.EncodeToString(ratelimit.SealOf(l, "key", []byte{1, 2, 3})), "%v", alg)
	}
}
