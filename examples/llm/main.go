// Llm is a gateway to a language model. It limits the requests and the tokens of a user in a
// minute, and the dollars of an organisation in a month. The cost of a request is known only when
// the answer has been streamed. So the gateway holds an estimate of all three before, in one call,
// and settles the hold afterwards. Who has used up a minute gets 429, and who has used up a month
// gets 402. The model is a fake one, in the same program.
//
//	go run ./examples/llm -addr localhost:8080 -requests 20/1m -tokens 500/1m -dollars 5 -dir /tmp/llm
//
// Then, in another terminal:
//
//	for i in 1 2 3 4 5; do curl -sN localhost:8080 -H 'User: ann' -d 'Tell me a story'; done
//
// The budgets are in the directory, so they survive the program. If the program is killed while it
// streams an answer, the estimate for the answer counts.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

func main() {
	addr := flag.String("addr", "localhost:8080", "the `address` to listen on")
	requests := rate("requests", ratelimit.PerMinute(20), "how many `requests/span` a user may make")
	tokens := rate("tokens", ratelimit.PerMinute(500), "how many `tokens/span` a user may spend")
	dollars := flag.Float64("dollars", 5, "how many dollars an organisation may spend in a month")
	dir := flag.String("dir", "", "the `directory` of the budgets; without, they end with the program")
	flag.Parse()

	var opts []ratelimit.Option
	if *dir != "" {
		opts = append(opts, ratelimit.WithStore(newFiles(*dir)))
	}
	g, err := newGateway(storyteller(50*time.Millisecond), *requests, *tokens, int(*dollars*dollar), opts...)
	if err != nil {
		log.Fatal(err)
	}
	front, err := new(net.ListenConfig).Listen(context.Background(), "tcp", *addr)
	if err != nil {
		log.Fatal(err)
	}
	log.Printf("%v requests and %v tokens for each user, %g dollars for each organisation, on http://%s",
		*requests, *tokens, *dollars, front.Addr())
	server := &http.Server{Handler: g, ReadTimeout: 5 * time.Second, WriteTimeout: longest}
	log.Fatal(server.Serve(front))
}

// rate defines a flag whose value is a rate.
func rate(name string, value ratelimit.Rate, usage string) *ratelimit.Rate {
	flag.Func(name, fmt.Sprintf("%s (default %v)", usage, value), func(s string) (err error) {
		value, err = ratelimit.ParseRate(s)
		return err
	})
	return &value
}
