package main

import "github.com/ratelimit-go/ratelimit/benchmarks/contenders"

// The numbers of keys in a call for many.
const (
	eachKeys    = 64  // of S4h-each
	eachInRedis = 100 // of RE100
)

// walkEach is like walkWarm, with one call for eachKeys keys at a time.
func walkEach(each contenders.Each, ks keys, order []uint32) (wrong int) {
	var touched byte
	batch := make([]string, 0, eachKeys)
	for at, i := range order {
		touched ^= ks.touch(int(order[min(at+ahead, len(order)-1)]))
		batch = append(batch, ks.at(int(i)))
		if len(batch) == eachKeys || at == len(order)-1 {
			wrong += len(batch) - each(batch)
			batch = batch[:0]
		}
	}
	sink.Store(uint32(touched))
	return wrong
}

// redisEach times decisions on eachInRedis keys by one caller, in a loop and in one call: on
// the loopback interface, and a wire away.
func redisEach(r *round) error {
	ks := make([]string, eachInRedis)
	for i := range ks {
		ks[i] = r.keys.at(i)
	}
	for _, server := range []struct{ addr, loop, each string }{
		{r.server.addr, "RE100-loop", "RE100"},
		{r.wire.addr, "RE100-away-loop", "RE100-away"},
	} {
		if err := r.server.flush(); err != nil {
			return err
		}
		allow, each, end, err := r.contender.DialEach(server.addr, contenders.Lavish, r.timeout)
		if err != nil {
			return err
		}
		r.close = end
		loop := func(int) int { return fill(allow, r.keys, eachInRedis) }
		call := func(int) int { return eachInRedis - each(ks) }
		r.results.addWrong(server.loop, r.contender.Name, loop(0)) // not timed: makes connections and loads scripts
		r.results.addWrong(server.each, r.contender.Name, call(0))
		r.batches(r.sizes.aloneBatches, eachInRedis, row{server.loop, loop}, row{server.each, call})
		r.stop()
	}
	return nil
}
