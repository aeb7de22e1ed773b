package main

import (
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// promptTokens is the header field in which the model says how many tokens the prompt has.
const promptTokens = "Prompt-Tokens"

// A model is a fake language model, whose tokens are words. It streams twenty for each word of
// the prompt.
type model struct{ pace time.Duration } // for each token

const story = "Once upon a time a small gopher dug a very long tunnel and when it was done nobody remembered where it began. "

func (m model) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	prompt, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	n := len(strings.Fields(string(prompt)))
	w.Header().Set(promptTokens, strconv.Itoa(n))
	words := strings.Fields(story)
	for i := range min(20*n, maxAnswer) {
		io.WriteString(w, words[i%len(words)]+" ")
		if err := http.NewResponseController(w).Flush(); err != nil {
			return // the gateway has left
		}
		time.Sleep(m.pace)
	}
}
