package memory

// The load of a table is the part of its slots that are taken.
const (
	// A new table has a load between these: see shard.newLoad.
	minLoad    = 0.46
	maxNewLoad = 0.56

	// maxLoad is the load above which a table is replaced. It is below 1, so that every search
	// ends.
	maxLoad = 0.85

	// sparse is the load below which a sweep replaces a table by a smaller one.
	sparse = 0.15
)
