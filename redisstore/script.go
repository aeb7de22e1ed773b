package redisstore

import (
	"crypto/sha1" // by which Redis knows scripts
	"embed"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// A script is a Lua program, which Redis identifies by the hash of its text.
type script struct{ text, sha string }

func newScript(text string) *script {
	sum := sha1.Sum([]byte(text))
	return &script{text, hex.EncodeToString(sum[:])}
}

// command returns the command that runs the script on keys, on a server that knows it.
func (s *script) command(keys, args []string) Command {
	words := append(make([]string, 0, 3+len(keys)+len(args)), "EVALSHA", s.sha, strconv.Itoa(len(keys)))
	return Command{Words: append(append(words, keys...), args...), Key: 3}
}

// inFull returns c with the full text of s, for a server that did not know the script.
func (s *script) inFull(c Command) Command {
	words := append([]string{"EVAL", s.text}, c.Words[2:]...)
	return Command{Words: words, Key: c.Key}
}

// The kinds of parts, by their numbers in the scripts.
const (
	bucketKind = iota + 1
	queueKind
	intervalKind
	fixedKind
	slidingKind
	rollingKind
	logKind
	warmingKind
	flightKind
)

var (
	//go:embed lua/driver.lua
	driverText string
	//go:embed lua/joint.lua
	jointText string
	//go:embed lua/account.lua
	accountText string
)

//go:embed lua/parts.lua lua/holds.lua lua/ahead.lua lua/slidinglog.lua lua/flight.lua
//go:embed lua/bucket.lua lua/interval.lua lua/fixed.lua lua/ring.lua lua/wide.lua lua/sliding.lua lua/rolling.lua lua/log.lua lua/warming.lua
var kernelFiles embed.FS

// kernels are the files of each kind's kernel.
var kernels = [...][]string{
	bucketKind:   {"bucket", "wide"},
	queueKind:    {"bucket", "wide"},
	intervalKind: {"interval"},
	fixedKind:    {"fixed"},
	slidingKind:  {"ring", "wide", "sliding"},
	rollingKind:  {"ring", "rolling"},
	logKind:      {"log", "slidinglog"},
	warmingKind:  {"warming"},
	flightKind:   {"log", "flight"},
}

// sharedFiles have sections that belong to no kernel.
var sharedFiles = [...]string{"parts", "holds", "ahead"}

// The template's directives, at the beginning of a line: one begins a section, or
// lines for some scripts only; the other inserts a section. See lua/driver.lua.
const (
	beginMark  = "--@@"
	insertMark = "--@<"
)

// sectionsOf returns the sections of each kernel file and of sharedFiles, by their names.
var sectionsOf = sync.OnceValue(func() map[string]map[string]string {
	sections := map[string]map[string]string{}
	for _, file := range append(slices.Concat(kernels[:]...), sharedFiles[:]...) {
		text, err := kernelFiles.ReadFile("lua/" + file + ".lua")
		if err != nil {
			panic(err) // it is embedded
		}
		sections[file] = map[string]string{}
		name := "" // for the text before the first section
		for line := range strings.Lines(string(text)) {
			if next, ok := strings.CutPrefix(line, beginMark); ok {
				name = strings.TrimSpace(next)
			} else {
				sections[file][name] += line
			}
		}
	}
	return sections
})

// scripts caches the assembled scripts.
var scripts sync.Map // from scriptID to *script

type scriptID struct {
	all     bool
	variant variant
	kinds   uint16 // a set
}

// A variant is a variant of the script. What few calls need is not in the plain one, because
// Redis runs a script from its first line on each call.
type variant byte

const (
	longer   variant = 1 << iota // has account.lua
	holding                      // has holds.lua, ahead.lua and account.lua
	together                     // is joint.lua instead, for the parts of several keys

	plain variant = 0
)

// scriptFor returns the script for parts of these kinds. all is whether they are the parts of
// an All.
func scriptFor(all bool, v variant, kinds []byte) *script {
	id := scriptID{all: all, variant: v}
	for _, k := range kinds {
		id.kinds |= 1 << k
	}
	if s, ok := scripts.Load(id); ok {
		return s.(*script)
	}
	a := assembly{all: all, variant: v}
	for k := range byte(len(kernels)) {
		if id.kinds&(1<<k) != 0 {
			a.kinds = append(a.kinds, k)
		}
	}
	s, _ := scripts.LoadOrStore(id, newScript(a.text()))
	return s.(*script)
}

// An assembly assembles a script from the template, as lua/driver.lua describes.
type assembly struct {
	all     bool
	variant variant
	kinds   []byte
	inner   bool // whether the text is that of a kernel's section
}

// expandFor returns the text of a section of the kernel of kind k, with the sections that it inserts.
func expandFor(k byte, text string) string {
	return (&assembly{kinds: []byte{k}, inner: true}).expand(text)
}

// applies reports whether the assembly has the lines after a mark with these words.
func (a *assembly) applies(words string) bool {
	for _, word := range strings.Fields(words) {
		switch word {
		case "one", "several":
			if a.all != (word == "several") {
				return false
			}
		case "account":
			if a.variant&(longer|holding) == 0 {
				return false
			}
		case "holding", "closed":
			if (a.variant&holding == 0) != (word == "closed") {
				return false
			}
		}
	}
	return true
}

// library matches the lines that make a library function a local variable. Each such line
// costs time, so that unused ones are removed.
var library = regexp.MustCompile(`(?m)^local (\w+) = (?:(?:struct|string|math)\.\w+|unpack)\n`)

var field = regexp.MustCompile(`\bp\.(\w+)`)

func (a *assembly) text() string {
	template := driverText
	if a.variant&together != 0 {
		template = jointText
	}
	text := lean(a.expand(template))
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
	if a.all { // allocate the table at its final size
		text = strings.Replace(text, "@fields\n", "", 1)
		return strings.Replace(text, "@table\n", "local p = {"+strings.Join(fields, " = false, ")+" = false}\n", 1)
	}
	text = field.ReplaceAllString(text, "p_$1")
	text = strings.NewReplacer("(p, ", "(", "(p)", "()", "@fields\n", "local p_"+strings.Join(fields, ", p_")+"\n").Replace(text)
	return text
}

// expand inserts the sections that text refers to, and drops the lines that do not apply.
func (a *assembly) expand(text string) string {
	var out strings.Builder
	skipping := false
	for line := range strings.Lines(text) {
		code := strings.TrimSpace(line)
		if words, ok := strings.CutPrefix(code, beginMark); ok {
			skipping = !a.applies(words)
		} else if name, ok := strings.CutPrefix(code, insertMark); !skipping {
			if ok {
				line = a.section(name)
			}
			out.WriteString(line)
		}
	}
	return out.String()
}

// section returns the code to insert for a name.
func (a *assembly) section(name string) string {
	switch {
	case name == "fields" || name == "table":
		return "@" + name + "\n" // replaced by text, when all fields are known
	case name == "each" && a.variant&together != 0:
		return "for j = first, many do\nlocal p = P[j]\nlocal n = p.n\n"
	case name == "each" && a.all:
		return "for j = 1, many do\nlocal p = P[j]\n"
	case name == "each":
		return "do\n"
	case name == "settleHelp":
		return a.helpers(name)
	case name == "opening":
		return a.opening()
	case name == "account" && a.variant&(longer|holding) != 0:
		return a.expand(accountText)
	case name == "account":
		return ""
	}
	for _, file := range sharedFiles {
		if text, ok := sectionsOf()[file][name]; ok {
			return a.expand(text)
		}
	}
	return a.branches(name)
}

// reading matches the statement that reads the constants of a kind.
var reading = regexp.MustCompile(`(?m)^(p\..*), pos = unpack\('<(\w+)', request, pos\)\n`)

// opening returns the section open of the only kind, in which one statement reads all that a
// request with one run consists of.
func (a *assembly) opening() string {
	fields, format := ", now, op, times, n, wait", "dBI4dd"
	if sections := sectionsOf()[kernels[a.kinds[0]][0]]; strings.Contains(sections["open"], "p.unit,") {
		fields, format = fields+", p.costTicks, p.costUnits", format+"dd"
	}
	all := fmt.Sprintf("p.kind, ${1}%s, pos = unpack('<B${2}%s', request)\n", fields, format)
	return reading.ReplaceAllString(a.branches("open"), all)
}

// helpers returns the kernels' sections of functions, each file's once.
func (a *assembly) helpers(name string) (code string) {
	var files []string
	for _, k := range a.kinds {
		for _, file := range kernels[k] {
			if !slices.Contains(files, file) {
				files = append(files, file)
				code += expandFor(k, sectionsOf()[file][name])
			}
		}
	}
	return code
}

// branches returns the code of a section: an if statement with a branch for each kind, or
// just the code if it is the same for all kinds.
func (a *assembly) branches(name string) (code string) {
	var conditions, codes []string
	for _, k := range a.kinds {
		text := sectionText(k, name)
		if text == "" && name == "charge" {
			text = sectionText(k, "spend")
		}
		code := expandFor(k, text)
		condition := fmt.Sprintf("p.kind == %d", k)
		if i := slices.Index(codes, code); i >= 0 {
			conditions[i] += " or " + condition
		} else {
			conditions, codes = append(conditions, condition), append(codes, code)
		}
	}
	if a.inner || len(codes) == 1 && codes[0] == "" {
		return codes[0] // without a block: the code after it may use its local variables
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

// sectionText returns a section of a kind's kernel.
func sectionText(kind byte, name string) (text string) {
	for _, file := range kernels[kind] {
		text += sectionsOf()[file][name]
	}
	return text
}

// lean removes comments and indentation, which Redis would keep in memory.
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
