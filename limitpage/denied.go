package limitpage

import (
	"cmp"
	"context"
	"hash/maphash"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

const (
	mostDenied   = 32          // keys that a list has
	halfLife     = time.Minute // after which a denial counts half
	longestShown = 128         // bytes of a key that are kept
)

// A deniedKeys is an observer that lists the keys of a limiter that were denied most lately.
// If the list is full, a new key takes the place of the one with the least count, and adds to
// that count, because it may have been denied as often before (space-saving).
type deniedKeys struct {
	seed maphash.Seed
	mu   sync.Mutex // protects keys
	keys map[uint64]*deniedKey
}

// A deniedKey is a key that was denied.
type deniedKey struct {
	Key        string
	Cut        bool    // whether Key is only the start of the key
	Count      float64 // denials, of which each counts half after halfLife; at the time Last
	Last       time.Time
	N          int           // events that the last denial was for
	RetryAfter time.Duration // of the last denial
	Back       time.Time     // RetryAfter after Last; zero if it is 0 or Never
}

func newDeniedKeys() *deniedKeys {
	return &deniedKeys{seed: maphash.MakeSeed(), keys: make(map[uint64]*deniedKey)}
}

func (k *deniedKey) countAt(now time.Time) float64 {
	return k.Count * math.Exp2(-float64(max(0, now.Sub(k.Last)))/float64(halfLife))
}

// Observe implements [ratelimit.Observer].
func (d *deniedKeys) Observe(_ context.Context, o ratelimit.Observation) {
	if o.Outcome != ratelimit.Denied {
		return
	}
	id, now := maphash.String(d.seed, o.Key), time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	k := d.keys[id]
	if k == nil {
		k = d.enter(id, now)
		k.Key, k.Cut = strings.Clone(o.Key[:min(len(o.Key), longestShown)]), len(o.Key) > longestShown
	}
	k.Count, k.Last, k.N, k.RetryAfter, k.Back = k.countAt(now)+1, now, o.N, o.Decision.RetryAfter, time.Time{}
	if k.RetryAfter > 0 && k.RetryAfter < ratelimit.Never {
		k.Back = now.Add(k.RetryAfter)
	}
}

// enter makes an entry for a key.
func (d *deniedKeys) enter(id uint64, now time.Time) *deniedKey {
	k := new(deniedKey)
	if len(d.keys) >= mostDenied {
		var out uint64
		least := math.Inf(1)
		for other, entry := range d.keys {
			if count := entry.countAt(now); count < least {
				out, least = other, count
			}
		}
		k = d.keys[out]
		delete(d.keys, out)
	}
	d.keys[id] = k
	return k
}

// Top returns at most n keys, those with the greatest Count first.
func (d *deniedKeys) Top(n int) []deniedKey {
	now := time.Now()
	d.mu.Lock()
	var all []deniedKey
	for _, k := range d.keys {
		c := *k
		if c.Count = k.countAt(now); c.Count >= 0.5 {
			all = append(all, c)
		}
	}
	d.mu.Unlock()
	slices.SortFunc(all, func(a, b deniedKey) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), strings.Compare(a.Key, b.Key))
	})
	return all[:min(len(all), n)]
}
