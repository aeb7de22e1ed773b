package redisstore

import (
	"context"
	"crypto/sha1" // the name that Redis gives a script
	"embed"
	"encoding/hex"
	"fmt"
	"slices"
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
	//go:embed lua/load.lua
	loadText string
	//go:embed lua/swap.lua
	swapText string

	loadScript = newScript(lean(loadText))
	swapScript = newScript(lean(swapText))
)

//go:embed lua/bucket.lua lua/lumps.lua lua/fixed.lua lua/ring.lua lua/sliding.lua lua/rolling.lua lua/log.lua lua/warming.lua
var kernelFiles embed.FS

// kernels are the files that each kind's kernel is in.
var kernels = [...][]string{
	bucketKind:  {"bucket"},
	queueKind:   {"bucket"},
	lumpsKind:   {"lumps"},
	fixedKind:   {"fixed"},
	slidingKind: {"ring", "sliding"},
	rollingKind: {"ring", "rolling"},
	logKind:     {"log"},
	warmingKind: {"warming"},
}

// sections returns the sections of a kernel's file, by their names.
func sections(file string) map[string]string {
	text, err := kernelFiles.ReadFile("lua/" + file + ".lua")
	if err != nil {
		panic(err) // it is embedded
	}
	of := map[string]string{}
	_, rest, _ := strings.Cut(string(text), marker)
	for section := range strings.SplitSeq(rest, marker) {
		name, code, _ := strings.Cut(section, "\n")
		of[name] = code
	}
	return of
}

// marker is what names a section, and the place for it.
const marker = "--@@"

// scripts are those that were put together so far, by the set of kinds.
var scripts sync.Map // from uint16 to *script

// scriptFor returns the script that decides for parts of these kinds: the driver,
// with the kernels put in.
func scriptFor(kinds []byte) *script {
	var set uint16
	for _, k := range kinds {
		set |= 1 << k
	}
	if s, ok := scripts.Load(set); ok {
		return s.(*script)
	}
	kinds = nil
	for k := byte(1); k < byte(len(kernels)); k++ {
		if set&(1<<k) != 0 {
			kinds = append(kinds, k)
		}
	}
	var text strings.Builder
	for line := range strings.Lines(driverText) {
		switch name, ok := strings.CutPrefix(strings.TrimSpace(line), marker); {
		case !ok:
			text.WriteString(line)
		case name == "help":
			text.WriteString(helpers(kinds))
		default:
			text.WriteString(branches(kinds, name))
		}
	}
	s, _ := scripts.LoadOrStore(set, newScript(lean(text.String())))
	return s.(*script)
}

// helpers returns what the kernels of kinds use, each once.
func helpers(kinds []byte) (code string) {
	var seen []string
	for _, k := range kinds {
		for _, file := range kernels[k] {
			if !slices.Contains(seen, file) {
				seen = append(seen, file)
				code += sections(file)["help"]
			}
		}
	}
	return code
}

// branches returns the code of a section: that of each kind under its condition, or
// if it is the same for all of them, just that.
func branches(kinds []byte, name string) (code string) {
	kind := "p.kind"
	if name == "open" {
		kind = "kind" // there is no p yet
	}
	var conditions, codes []string
	for _, k := range kinds {
		code := ""
		for _, file := range kernels[k] {
			code += sections(file)[name]
		}
		condition := fmt.Sprintf("%s == %d", kind, k)
		if i := slices.Index(codes, code); i >= 0 {
			conditions[i] += " or " + condition
		} else {
			conditions, codes = append(conditions, condition), append(codes, code)
		}
	}
	if len(codes) == 1 {
		return "do\n" + codes[0] + "end\n"
	}
	for i, c := range codes {
		if i > 0 {
			code += "else"
		}
		code += "if " + conditions[i] + " then\n" + c
	}
	return code + "end\n"
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
