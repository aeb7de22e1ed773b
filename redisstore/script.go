package redisstore

import (
	"context"
	"crypto/sha1" // the name that Redis gives a script
	_ "embed"
	"encoding/hex"
	"strings"
	"sync"
)

// A script is a program in Lua, known to Redis by the hash of its text.
type script struct{ text, sha string }

func newScript(text string) *script {
	sum := sha1.Sum([]byte(text))
	return &script{text, hex.EncodeToString(sum[:])}
}

// run runs the script on key. The text itself is sent only if the server that has
// the key does not know it.
func (s *script) run(ctx context.Context, conn Conn, key string, args ...string) (string, error) {
	reply, err := conn.EvalSha(ctx, s.sha, key, args)
	if err != nil && strings.HasPrefix(err.Error(), "NOSCRIPT") {
		return conn.Eval(ctx, s.text, key, args)
	}
	return reply, err
}

// The kinds of parts that an algorithm may have. Their numbers are those in the
// scripts.
const (
	bucketKind = iota + 1
	queueKind
	lumpsKind
	fixedKind
	slidingKind
	rollingKind
	logKind
	warmingKind
)

var (
	//go:embed lua/driver.lua
	driverText string
	//go:embed lua/bucket.lua
	bucketText string
	//go:embed lua/queue.lua
	queueText string
	//go:embed lua/lumps.lua
	lumpsText string
	//go:embed lua/fixed.lua
	fixedText string
	//go:embed lua/ring.lua
	ringText string
	//go:embed lua/sliding.lua
	slidingText string
	//go:embed lua/rolling.lua
	rollingText string
	//go:embed lua/log.lua
	logText string
	//go:embed lua/warming.lua
	warmingText string
	//go:embed lua/load.lua
	loadText string
	//go:embed lua/swap.lua
	swapText string

	loadScript = newScript(loadText)
	swapScript = newScript(swapText)
)

// kernelTexts are the texts that each kind needs, in the order in which they have
// to come.
var kernelTexts = []struct {
	text  string
	kinds []byte
}{
	{bucketText, []byte{bucketKind, queueKind}},
	{queueText, []byte{queueKind}},
	{lumpsText, []byte{lumpsKind}},
	{fixedText, []byte{fixedKind}},
	{ringText, []byte{slidingKind, rollingKind}},
	{slidingText, []byte{slidingKind}},
	{rollingText, []byte{rollingKind}},
	{logText, []byte{logKind}},
	{warmingText, []byte{warmingKind}},
}

// scripts are those that were put together so far, by the set of kinds.
var scripts sync.Map // from uint16 to *script

// scriptFor returns the script that decides for parts of these kinds.
func scriptFor(kinds []byte) *script {
	var set uint16
	for _, k := range kinds {
		set |= 1 << k
	}
	if s, ok := scripts.Load(set); ok {
		return s.(*script)
	}
	var kernels strings.Builder
	for _, k := range kernelTexts {
		for _, kind := range k.kinds {
			if set&(1<<kind) != 0 {
				kernels.WriteString(k.text)
				break
			}
		}
	}
	text := strings.Replace(driverText, "--KERNELS--\n", kernels.String(), 1)
	s, _ := scripts.LoadOrStore(set, newScript(lean(text)))
	return s.(*script)
}

// lean drops comments, which Redis would keep.
func lean(text string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		if code, _, _ := strings.Cut(line, "--"); strings.TrimSpace(code) != "" {
			out.WriteString(strings.TrimSpace(code))
			out.WriteByte('\n')
		}
	}
	return out.String()
}
