package limitpage

// This file has the data of the page: a report on all limiters and stores, as JSON.

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/param"
	"github.com/ratelimit-go/ratelimit/observe"
	"github.com/ratelimit-go/ratelimit/redisstore"
)

// A report is what the page shows, as JSON. Times are in milliseconds since the Unix epoch.
type report struct {
	Program  string          `json:"program"`
	Host     string          `json:"host"`
	Started  int64           `json:"started"` // when the page was made
	Now      int64           `json:"now"`
	History  int             `json:"history"` // seconds
	Reset    bool            `json:"reset"`   // whether keys can be reset
	Hashed   bool            `json:"hashed"`  // whether keys are hashes
	Limiters []limiterReport `json:"limiters"`
	Stores   []storeReport   `json:"stores"`
	Ignored  uint64          `json:"ignored"` // decisions of limiters beyond mostLimiters
}

type limiterReport struct {
	Name      string `json:"name"`
	Added     bool   `json:"added"`     // whether by Add; if not, only decisions are known
	Algorithm string `json:"algorithm"` // its type in Go
	Limit     string `json:"limit"`     // in words
	Store     *int   `json:"store"`     // index in Stores

	// Totals since the limiter was added or first seen, in decisions.
	Granted uint64 `json:"granted"` // at once or after a wait
	Denied  uint64 `json:"denied"`
	// Decided by the failure policy, or denied because the store is full.
	Degraded uint64 `json:"degraded"`
	Delayed  uint64 `json:"delayed"`  // the granted ones that waited
	Refused  uint64 `json:"refused"`  // the degraded ones that were not granted
	Withheld uint64 `json:"withheld"` // granted here, denied by another key of TakeAll

	// Totals in events.
	EventsGranted uint64 `json:"eventsGranted"`
	EventsDenied  uint64 `json:"eventsDenied"`

	Seconds seconds      `json:"seconds"`
	Top     []topReport  `json:"top"`  // the keys denied most lately
	Used    []usedReport `json:"used"` // the keys that have used most lately
	// The limit in words of the part of an All that denied the keys of the whole list most lately;
	// empty if the algorithm is no All, or is not known.
	DeniedBy string `json:"deniedBy"`
	// Of the store or of the lookup of limits; null if none failed lately.
	Outage *outageReport `json:"outage"`
}

// Seconds are the decisions of whole seconds.
type seconds struct {
	From     int64    `json:"from"` // the first second, since the Unix epoch
	Granted  []uint64 `json:"granted"`
	Denied   []uint64 `json:"denied"`
	Degraded []uint64 `json:"degraded"`
	Refused  []uint64 `json:"refused"` // the degraded ones that were not granted
}

// A listedReport is a key of a list. The list counts some of the requests for the key.
type listedReport struct {
	keyReport
	// Whether only the start of the key is known. Then the key cannot be looked up.
	Cut   bool  `json:"cut"`
	Since int64 `json:"since"` // when the key entered this list
	At    int64 `json:"at"`    // when the latest request came
	N     int   `json:"n"`     // the events of the latest request
}

// A topReport is a key in the list of the keys denied most.
type topReport struct {
	listedReport
	Denied float64 `json:"denied"`
	Part   int     `json:"part"` // the part of an All that denied the latest request
	partLimit

	// When the latest denied request may be made again; null if the time is unknown or never.
	Back  *int64 `json:"back"`
	Never bool   `json:"never"`
}

// A usedReport is a key in the list of the keys that have used most.
type usedReport struct {
	listedReport
	Used float64 `json:"used"` // in events
}

// A partLimit is a part of an All. It has no limit if the algorithm is no All, or is not known.
type partLimit struct {
	PartLimit string `json:"partLimit,omitempty"` // in words
}

func partLimitOf(alg ratelimit.Algorithm, part int) (p partLimit) {
	if decided, ok := partOf(alg, part); ok {
		_, p.PartLimit = words(decided)
	}
	return p
}

// partOf returns a part of an All. Of other algorithms, it returns alg, and ok is false.
func partOf(alg ratelimit.Algorithm, part int) (of ratelimit.Algorithm, ok bool) {
	if all, isAll := alg.(ratelimit.All); isAll && part >= 0 && part < len(all) {
		return all[part], true
	}
	return alg, false
}

// A storeReport is a store, and has either Memory or Redis.
type storeReport struct {
	Limiters []string      `json:"limiters"` // the limiters that use the store
	Memory   *memoryReport `json:"memory,omitempty"`
	Redis    *redisReport  `json:"redis,omitempty"`
}

// A memoryReport has the fields of ratelimit.MemoryStats.
type memoryReport struct {
	Keys      int    `json:"keys"`
	Bytes     uint64 `json:"bytes"`
	Inserts   uint64 `json:"inserts"`
	Evictions uint64 `json:"evictions"`
	Rejected  uint64 `json:"rejected"`
	Ended     uint64 `json:"ended"`
}

// A redisReport has the fields of redisstore.Stats.
type redisReport struct {
	Calls         uint64                 `json:"calls"`
	Coalesced     uint64                 `json:"coalesced"`
	Cached        uint64                 `json:"cached"`
	Leased        uint64                 `json:"leased"`
	Lost          uint64                 `json:"lost"`
	Failures      uint64                 `json:"failures"`
	Timeouts      uint64                 `json:"timeouts"`
	BreakerOpen   uint64                 `json:"breakerOpen"`
	ErrorReplies  uint64                 `json:"errorReplies"`
	OtherErrors   uint64                 `json:"otherErrors"`
	Ended         uint64                 `json:"ended"`
	Unreadable    uint64                 `json:"unreadable"`
	LatencyBounds []duration             `json:"latencyBounds"`
	Latency       []uint64               `json:"latency"`
	Breakers      map[string]string      `json:"breakers"`
	Outages       map[string]redisOutage `json:"outages"`
}

// A redisOutage has the fields of redisstore.Outage.
type redisOutage struct {
	Since int64  `json:"since"`
	Cause string `json:"cause"`
}

// A duration is written as seconds, to the nanosecond, and as null if it is Never.
type duration time.Duration

func (d duration) MarshalJSON() ([]byte, error) {
	if time.Duration(d) == ratelimit.Never {
		return []byte("null"), nil
	}
	s := strconv.AppendInt(nil, int64(time.Duration(d)/time.Second), 10)
	if frac := int64(time.Duration(d) % time.Second); frac != 0 {
		digits := strconv.FormatInt(frac+1_000_000_000, 10)[1:]
		s = append(append(s, '.'), digits...)
	}
	return s, nil
}

// allKeys is the number of keys that lists may have together if it is not bounded.
const allKeys = math.MaxInt

// A reportRequest says what a report has.
type reportRequest struct {
	since int64 // the seconds of limiters begin no earlier
	keys  int   // how many keys the lists of denied keys have together, and those of used keys
}

// report returns the state of all limiters and stores.
func (p *Page) report(of reportRequest) report {
	now := p.now()
	r := report{
		Program:  filepath.Base(os.Args[0]),
		Started:  p.started.UnixMilli(),
		Now:      now.Milliseconds(),
		History:  history,
		Reset:    p.reset,
		Hashed:   p.hashed,
		Ignored:  p.ignored.Load(),
		Limiters: []limiterReport{},
		Stores:   []storeReport{},
	}
	r.Host, _ = os.Hostname() // empty if the name is unknown
	var stores []ratelimit.Store
	limiters := p.snapshots()
	lists := listsOf(limiters, of.keys)
	for i, w := range limiters {
		l := p.reportOfLimiter(&w, &lists[i], of.since, now)
		if w.limiter != nil {
			if i, ok := indexOf(&stores, w.limiter.Describe().Store); ok {
				if i == len(r.Stores) {
					r.Stores = append(r.Stores, p.reportOfStore(stores[i]))
				}
				r.Stores[i].Limiters = append(r.Stores[i].Limiters, l.Name)
				l.Store = &i
			}
		}
		r.Limiters = append(r.Limiters, l)
	}
	return r
}

// A limiterSnapshot is a watched limiter. Add may set the limiter of the watchedLimiter at any
// time, so the snapshot has a copy.
type limiterSnapshot struct {
	*watchedLimiter
	limiter ratelimit.Limiter // nil if Add was not called before the snapshot was taken
}

// snapshots returns the limiters in the order in which they are shown.
func (p *Page) snapshots() []limiterSnapshot {
	watched := p.watched.All()
	all := make([]limiterSnapshot, len(watched))
	p.adding.Lock()
	defer p.adding.Unlock()
	for i, w := range watched {
		all[i] = limiterSnapshot{w, w.limiter}
	}
	return all
}

func (p *Page) reportOfLimiter(
	w *limiterSnapshot,
	lists *keyLists,
	since int64,
	now time.Duration,
) limiterReport {
	t := &w.tally
	r := limiterReport{
		Name: label(w.name), Added: w.limiter != nil,
		Granted: t.granted.Load(), Denied: t.denied.Load(), Degraded: t.degraded.Load(),
		Delayed: t.delayed.Load(), Refused: t.refused.Load(), Withheld: t.withheld.Load(),
		EventsGranted: t.eventsGranted.Load(), EventsDenied: t.eventsDenied.Load(),
		Top: []topReport{}, Used: []usedReport{}, Outage: p.outageOf(w.watchedLimiter, now),
	}
	var alg ratelimit.Algorithm
	if r.Added {
		alg = w.limiter.Describe().Algorithm
		r.Algorithm, r.Limit = wordsOfLimiter(w.limiter)
	}
	r.Seconds = secondsOf(t.since(since, now))
	r.DeniedBy = partLimitOf(alg, lists.deniedBy).PartLimit
	for _, k := range lists.denied {
		r.Top = append(r.Top, p.topReportOf(&k, alg))
	}
	for _, k := range lists.used {
		r.Used = append(r.Used, usedReport{p.listedReportOf(&k), k.Count})
	}
	return r
}

// secondsOf returns the counts of successive seconds as a report has them. from is the first
// second.
func secondsOf(from int64, of []counts) seconds {
	n := len(of)
	s := seconds{
		From:     from,
		Granted:  make([]uint64, n),
		Denied:   make([]uint64, n),
		Degraded: make([]uint64, n),
		Refused:  make([]uint64, n),
	}
	for i, c := range of {
		s.Granted[i], s.Denied[i] = c.granted, c.denied
		s.Degraded[i], s.Refused[i] = c.degraded, c.refused
	}
	return s
}

// topReportOf returns what the page shows of a denied key of a limiter with algorithm alg.
func (p *Page) topReportOf(k *observe.TopKey, alg ratelimit.Algorithm) topReport {
	r := topReport{
		listedReport: p.listedReportOf(k),
		Denied:       k.Count,
		Part:         k.Part,
		partLimit:    partLimitOf(alg, k.Part),
		Never:        k.RetryAfter == ratelimit.Never,
	}
	if !k.Back.IsZero() {
		back := k.Back.UnixMilli()
		r.Back = &back
	}
	return r
}

func (p *Page) listedReportOf(k *observe.TopKey) listedReport {
	r := listedReport{
		keyReport: p.keyReportOf(k.Key),
		Cut:       k.Cut,
		Since:     k.Since.UnixMilli(),
		At:        k.Last.UnixMilli(),
		N:         k.N,
	}
	r.Verbatim = r.Verbatim && !k.Cut
	return r
}

// indexOf returns the index of store in stores, and appends the store if stores lacks it. ok says
// whether the page knows how to show the store.
func indexOf(stores *[]ratelimit.Store, store ratelimit.Store) (i int, ok bool) {
	switch store.(type) {
	case memoryStats, redisStats:
	default:
		return 0, false
	}
	i = slices.IndexFunc(*stores, func(s ratelimit.Store) bool { return param.Same(s, store) })
	if i < 0 {
		i = len(*stores)
		*stores = append(*stores, store)
	}
	return i, true
}

// A memoryStats is a MemoryStore, or a store that embeds one.
type memoryStats interface{ Stats() ratelimit.MemoryStats }

// A redisStats is a store of package redisstore, or one that embeds it.
type redisStats interface{ Stats() redisstore.Stats }

func (p *Page) reportOfStore(store ratelimit.Store) (r storeReport) {
	switch store := store.(type) {
	case memoryStats:
		s := store.Stats()
		r.Memory = &memoryReport{s.Keys, s.Bytes, s.Inserts, s.Evictions, s.Rejected, s.Ended}
	case redisStats:
		s := store.Stats()
		r.Redis = &redisReport{
			Calls:        s.Calls,
			Coalesced:    s.Coalesced,
			Cached:       s.Cached,
			Leased:       s.Leased,
			Lost:         s.Lost,
			Failures:     s.Failures,
			Timeouts:     s.Timeouts,
			BreakerOpen:  s.BreakerOpen,
			ErrorReplies: s.ErrorReplies,
			OtherErrors:  s.OtherErrors,
			Ended:        s.Ended,
			Unreadable:   s.Unreadable,
			Latency:      s.Latency[:],
			Breakers:     s.Breakers,
			Outages:      map[string]redisOutage{},
		}
		for server, o := range s.Outages {
			r.Redis.Outages[server] = redisOutage{o.Since.UnixMilli(), p.errorText(o.Cause)}
		}
		for _, bound := range redisstore.LatencyBounds() {
			r.Redis.LatencyBounds = append(r.Redis.LatencyBounds, duration(bound))
		}
	}
	return r
}
