// Package memory is the engine of the store in memory. It keeps the states of keys, and identifies
// a key by a hash. When the store is full, it makes room for new keys, and denies the requests of
// new keys for which there is no room. It knows the arithmetic only as a [step.Machine].
//
// A decision on a state of one word takes no lock. It finds the word in a table, reads the clock,
// and swaps the new state in; a denial only reads. The states of most limits of a TokenBucket, a
// LeakyBucket, a FixedWindow and a SlidingWindow of one segment are one word. The lock of a shard
// is taken for a new key, for all other states, and while a table is replaced.
//
// The files are listed from the ground up. Each file calls only files above it in this list:
//
//	identity.go   the hash by which a key is known
//	decider.go    decides on a state of one word without a lock
//	load.go       how full tables are
//	arena.go      holds the states of a shard that are not one word
//	limit.go      the limit of a key, as a kernel for words and one for all other states
//	shard.go      a part of a space, with its own lock; the order of the locks
//	table.go      where the keys of a shard are: layout, atomic operations, guarantees
//	directory.go  which shard a key is in
//	store.go      a store and its spaces, one for each limiter
//	space.go      the limits of the keys of a space
//	places.go     how many keys a store with a bound holds
//	slot.go       reads, replaces and forgets a state under the lock
//	idle.go       forgets idle keys
//	growth.go     replaces tables, and splits shards
//	evict.go      makes room in a full store
//	admit.go      admits a new key to a full store, or denies its request
//	apply.go      applies a request to a key
//	allow.go      decides for callers that ask only whether events are granted
//	batch.go      decides on many keys independently
//	words.go      decides on a few known keys together whose states are words
//	arrivals.go   counts the new keys of a joint, and their places
//	jointkey.go   a key of a joint
//	joint.go      decides on any keys together
//	upkeep.go     statistics, shrinking, and dropping a space
//	states.go     the states of a limiter, as the root package knows them
//	file.go       the form of a file with states
//	save.go       writes the states of limiters to a file, and restores them
package memory
