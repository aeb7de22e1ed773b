package main

import (
	"context"
	"iter"
	"strings"
	"time"
)

// A model returns the number of tokens of a prompt, and the tokens of the answer. It streams them
// until ctx ends.
type model func(ctx context.Context, prompt string) (n int, answer iter.Seq[string], err error)

// storyteller returns a fake model whose tokens are words. It answers with twenty words for each
// word of the prompt.
func storyteller(pace time.Duration) model {
	story := strings.Fields("Once upon a time a small gopher dug a very long tunnel " +
		"and when it was done nobody remembered where it began.")
	return func(ctx context.Context, prompt string) (n int, answer iter.Seq[string], err error) {
		n = len(strings.Fields(prompt))
		return n, func(yield func(string) bool) {
			for i := range min(20*n, maxAnswer) {
				if ctx.Err() != nil || !yield(story[i%len(story)]) {
					return
				}
				time.Sleep(pace)
			}
		}, nil
	}
}
