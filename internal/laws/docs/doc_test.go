// Package docs_test compares what the documentation shows and points at with what there is, and asks
// each place that must know an algorithm whether it knows all. It runs in the root of the module,
// and has no random histories.
package docs_test

import (
	"log"
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	if err := os.Chdir("../../.."); err != nil {
		log.Fatal(err)
	}
	m.Run()
}
