package redisstore

import (
	"crypto/sha1" // the name that Redis gives a script
	"embed"
	"encoding/hex"
	"fmt"
	"regexp"
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

// command returns the command that runs the script on key, if the server knows it.
func (s *script) command(key string, args ...string) Command {
	words := append(make([]string, 0, 4+len(args)), "EVALSHA", s.sha, "1", key)
	return Command{Words: append(words, args...), Key: 3}
}

// inFull returns a command for a server that did not know the script of c.
func (s *script) inFull(c Command) Command {
	words := append([]string{"EVAL", s.text}, c.Words[2:]...)
	return Command{Words: words, Key: c.Key}
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

// What lines begin with that name a section or a form, and those that ask for one.
const (
	names = "--@@"
	asks  = "--@<"
)

// sectionsOf returns the sections of a kernel's files, by their names.
var sectionsOf = sync.OnceValue(func() (of [len(kernels)]map[string]string) {
	for kind, files := range kernels {
		of[kind] = map[string]string{}
		for _, file := range files {
			text, err := kernelFiles.ReadFile("lua/" + file + ".lua")
			if err != nil {
				panic(err) // it is embedded
			}
			name := "" // of what comes before the first one
			for line := range strings.Lines(string(text)) {
				if next, ok := strings.CutPrefix(line, names); ok {
					name = strings.TrimSpace(next)
				} else {
					of[kind][name] += line
				}
			}
		}
	}
	return of
})

// scripts are those that were put together so far, by form and set of kinds.
var scripts sync.Map // from forKinds to *script

type forKinds struct {
	all bool
	set uint16
}

// scriptFor returns the script that decides for parts of these kinds, of an All or
// not.
func scriptFor(all bool, kinds []byte) *script {
	id := forKinds{all: all}
	for _, k := range kinds {
		id.set |= 1 << k
	}
	if s, ok := scripts.Load(id); ok {
		return s.(*script)
	}
	a := assembly{all: all}
	for k := range byte(len(kernels)) {
		if id.set&(1<<k) != 0 {
			a.kinds = append(a.kinds, k)
		}
	}
	s, _ := scripts.LoadOrStore(id, newScript(a.text()))
	return s.(*script)
}

// An assembly puts a script together, as the driver says.
type assembly struct {
	all   bool
	kinds []byte
}

// arrival is the one section that a section of a kernel asks for.
const arrival = "arrival"

// library finds the lines that name functions of Lua's. To fetch one takes time.
var library = regexp.MustCompile(`(?m)^local (\w+) = (?:(?:struct|string|math)\.\w+|unpack)\n`)

var field = regexp.MustCompile(`\bp\.(\w+)`)

func (a *assembly) text() string {
	text := lean(a.expand(driverText))
	for _, line := range library.FindAllStringSubmatch(text, -1) {
		if strings.Count(text, line[1]+"(") == 0 {
			text = strings.Replace(text, line[0], "", 1)
		}
	}
	var fields []string
	for _, f := range field.FindAllStringSubmatch(text, -1) {
		if !slices.Contains(fields, f[1]) {
			fields = append(fields, f[1])
		}
	}
	if a.all { // a table of the size that it will have
		text = strings.Replace(text, "@fields\n", "", 1)
		return strings.Replace(text, "@table\n", "local p = {"+strings.Join(fields, " = false, ")+" = false}\n", 1)
	}
	text = field.ReplaceAllString(text, "p_$1")
	text = strings.NewReplacer("(p, ", "(", "(p)", "()", "@fields\n", "local p_"+strings.Join(fields, ", p_")+"\n").Replace(text)
	return text
}

// expand puts in what text asks for.
func (a *assembly) expand(text string) string {
	var out strings.Builder
	skipping := false
	for line := range strings.Lines(text) {
		code := strings.TrimSpace(line)
		if form, ok := strings.CutPrefix(code, names); ok {
			skipping = form == "one" && a.all || form == "several" && !a.all
		} else if name, ok := strings.CutPrefix(code, asks); !skipping {
			if ok {
				line = a.asked(name)
			}
			out.WriteString(line)
		}
	}
	return out.String()
}

// asked returns what is asked for by name.
func (a *assembly) asked(name string) string {
	switch {
	case name == "fields" || name == "table":
		return "@" + name + "\n" // known at the end
	case name == "each" && a.all:
		return "for j = 1, many do\nlocal p = P[j]\n"
	case name == "each":
		return "do\n"
	case name == "help":
		return a.helpers()
	}
	return a.branches(name)
}

// helpers returns what the kernels use, each file's once.
func (a *assembly) helpers() (code string) {
	for _, k := range a.kinds {
		if help := sectionsOf()[k]["help"]; !strings.Contains(code, help) {
			code += help
		}
	}
	return code
}

// branches returns the code of a section: that of each kind under its condition, or
// if it is the same for all of them, just that.
func (a *assembly) branches(name string) (code string) {
	var conditions, codes []string
	for _, k := range a.kinds {
		code := (&assembly{kinds: []byte{k}}).expand(sectionsOf()[k][name])
		condition := fmt.Sprintf("p.kind == %d", k)
		if i := slices.Index(codes, code); i >= 0 {
			conditions[i] += " or " + condition
		} else {
			conditions, codes = append(conditions, condition), append(codes, code)
		}
	}
	if len(codes) == 1 && name == arrival {
		return codes[0] // whose locals are for what follows
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
