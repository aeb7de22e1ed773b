package docs_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/fakes"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/model"
	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// TestSealedSet finds the algorithms in the source, and looks whether every place that
// must know an algorithm, and that the compiler does not ask for, knows all of them.
func TestSealedSet(t *testing.T) {
	inRoot(t)
	declared := receivers(t, "spec")
	require.NotEmpty(t, declared)
	tested := make(map[string]ratelimit.Algorithm)
	for _, alg := range storetest.Algorithms() {
		tested[reflect.TypeOf(alg).Name()] = alg
	}
	for _, alg := range storetest.Plans() {
		if _, all := alg.(ratelimit.All); !all {
			tested[reflect.TypeOf(alg).Name()] = alg
		}
	}
	for _, name := range declared {
		alg, ok := tested[name]
		if !assert.True(t, ok, "storetest.Algorithms and storetest.Plans lack a %s", name) {
			continue
		}
		tr, err := fakes.NewLimit(alg)
		if !assert.NoError(t, err, "newLimit lacks a %s", name) {
			continue
		}
		assert.NotPanics(t, func() { model.New(alg, 1) }, "internal/model lacks a definition of a %s", name)
		assert.NotPanics(t, func() { _ = alg.String() }, "internal/limit/words.go lacks the words of a %s", name)
		if tr.Stateless() {
			continue
		}
		readBack(t, tr)
	}
	for _, alg := range storetest.Algorithms() {
		tr, err := fakes.NewLimit(alg)
		require.NoError(t, err)
		assert.Equal(t, tr.Known, limit.AlgorithmOf(&tr.Spec), "of is not the reverse of spec")
	}
}

// readBack checks that a limiter with half of the limit of tr reads a state that tr left.
func readBack(t *testing.T, tr *limit.Limit) {
	half, err := fakes.NewLimit(ratelimit.Share(tr.Known.(ratelimit.Algorithm), 2))
	require.NoError(t, err)
	require.NotEqual(t, tr.Tag(), half.Tag())
	now := step.Request{N: 1}.At(time.Unix(1000, 0))
	after, err := tr.Apply(nil, now)
	require.NoError(t, err)
	_, err = half.Apply(after.State, now)
	assert.NoError(t, err, "a state of %+v", tr.Spec)
}

// receivers returns the types of this package that have a method.
func receivers(t *testing.T, method string) (names []string) {
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		require.NoError(t, err)
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv != nil && fn.Name.Name == method {
				names = append(names, fmt.Sprint(fn.Recv.List[0].Type))
			}
		}
	}
	return names
}
