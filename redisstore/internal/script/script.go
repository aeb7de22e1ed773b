// Package script has what the Lua scripts of package redisstore know: their text, a limit as their
// constants, requests in their encoding, and the values that they keep as states.
package script

import (
	"crypto/sha1" // by which Redis knows scripts
	"embed"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/ratelimit-go/ratelimit/internal/limit"
)

// A Script is a Lua program, which Redis identifies by the hash of its text.
type Script struct{ Text, SHA string }

// Of returns the script with a text.
func Of(text string) *Script {
	sum := sha1.Sum([]byte(text))
	return &Script{text, hex.EncodeToString(sum[:])}
}

// Key is the index of the first key in the words of a command that runs a script.
const Key = 3

// Words returns the words of the command that runs the script on keys, on a server that knows it.
func (s *Script) Words(keys, args []string) []string {
	words := make([]string, 0, Key+len(keys)+len(args))
	words = append(words, "EVALSHA", s.SHA, strconv.Itoa(len(keys)))
	return append(append(words, keys...), args...)
}

// InFull returns the words of a command with the full text of s, for a server that did not know
// the script.
func (s *Script) InFull(words []string) []string {
	return append([]string{"EVAL", s.Text}, words[2:]...)
}

// A kernel is how the scripts decide for a kind of parts. The scripts know it by its index.
type kernel struct {
	letter byte     // of the kind: see limit.Spec.Letter
	name   string   // in the scripts
	files  []string // with its blocks
	// Appends the constants of a part, and notes in the program what else the commands need.
	constants func(*Program, []byte, *limit.Spec) []byte

	isPartial bool // whether a reply may omit entries of a state that affect no decision
	isShort   bool // whether a state may have the short form of lua/parts.lua
}

// kernels has no index 0. A kind of limit without a row needs no script: the process decides, and
// replaces the value, as foreign.go does.
var kernels = [...]kernel{
	1:  {'t', "bucket", []string{"bucket"}, (*Program).bucket, false, true},
	2:  {'l', "queue", []string{"bucket"}, (*Program).bucket, false, true},
	3:  {'i', "interval", []string{"interval"}, (*Program).interval, false, false},
	4:  {'f', "fixed", []string{"window", "fixed"}, (*Program).fixed, false, false},
	5:  {'s', "sliding", []string{"ring", "sliding"}, (*Program).sliding, false, false},
	6:  {'r', "rolling", []string{"ring", "rolling"}, (*Program).rolling, false, false},
	7:  {'g', "log", []string{"log", "slidinglog"}, (*Program).log, true, false},
	8:  {'w', "warming", []string{"warming"}, (*Program).warming, false, false},
	9:  {'c', "flight", []string{"log", "flight"}, (*Program).flight, true, false},
	10: {'d', "calendar", []string{"window", "calendar"}, (*Program).calendar, false, false},
	11: {'k', "lockout", []string{"lockout"}, (*Program).lockout, false, false},
}

// kindOf returns the index of the kernel with a letter, or 0 if there is none.
func kindOf(letter byte) byte {
	has := func(k kernel) bool { return k.letter == letter }
	return byte(max(0, slices.IndexFunc(kernels[:], has)))
}

// sharedFiles have the blocks that belong to no kernel.
var sharedFiles = []string{"parts", "account", "holds", "ahead", "wide"}

//go:embed lua
var luaFiles embed.FS

// luaText returns the text of a file.
func luaText(file string) string {
	text, err := luaFiles.ReadFile("lua/" + file + ".lua")
	if err != nil {
		panic(err) // it is embedded
	}
	return string(text)
}

// The marks of the joiner begin a line. lua/take.lua says what they mean.
const (
	blockMark     = "--# "
	directiveMark = "--@ "
)

// adds ends the names of blocks that are added to those of another file.
const adds = " +"

// blocksOf returns the blocks of each kernel's files and of sharedFiles, by their names.
var blocksOf = sync.OnceValue(func() map[string]map[string]string {
	files := slices.Clone(sharedFiles)
	for _, k := range kernels {
		files = append(files, k.files...)
	}
	blocks := map[string]map[string]string{}
	for _, file := range files {
		blocks[file] = map[string]string{}
		name := "" // for the text before the first block
		for line := range strings.Lines(luaText(file)) {
			if next, ok := strings.CutPrefix(line, blockMark); ok {
				name = strings.TrimSpace(next)
			}
			blocks[file][name] += line // begins with the mark, so that none is empty
		}
	}
	return blocks
})

// A Variant is a variant of the script. What few calls need is not in the plain one, because
// Redis runs a script from its first line on each call.
type Variant byte

const (
	Longer   Variant = 1 << iota // knows charges
	Holding                      // knows charges, holds and turns
	together                     // is for the parts of several keys

	Plain Variant = 0
)

// scripts caches the joined scripts.
var scripts sync.Map // from scriptID to *Script

type scriptID struct {
	all     bool
	variant Variant
	kinds   uint16 // a set
}

// ForKeys returns the script that decides on several keys together, whose limits have parts of
// these kinds.
func ForKeys(kinds []byte, v Variant) *Script { return scriptFor(true, v|together, kinds) }

// scriptFor returns the script for parts of these kinds. all is whether they are the parts of
// an All, or of several keys.
func scriptFor(all bool, v Variant, kinds []byte) *Script {
	id := scriptID{all: all, variant: v}
	for _, k := range kinds {
		id.kinds |= 1 << k
	}
	if s, ok := scripts.Load(id); ok {
		return s.(*Script)
	}
	s, _ := scripts.LoadOrStore(id, Of(id.text()))
	return s.(*Script)
}

// text returns the text of the script.
func (id scriptID) text() string {
	var j joiner
	for k := range kernels {
		if id.kinds&(1<<k) != 0 {
			j.kernels = append(j.kernels, kernels[k])
		}
	}
	for word, has := range map[string]bool{
		"all":     id.all,
		"longer":  id.variant&Longer != 0,
		"holding": id.variant&Holding != 0,
	} {
		if has {
			j.words = append(j.words, word)
		}
	}
	switch {
	case id.variant&together != 0:
		return j.join(luaText("joint"))
	case id.all || id.variant&Holding != 0:
		return j.join(luaText("main"))
	}
	j.current = j.kernels[0].files
	return j.join(luaText("take"))
}

// A joiner joins the Lua files to a script.
type joiner struct {
	kernels []kernel // of the parts
	kind    int      // the index of the one that is current, for its part
	words   []string // what else the script has
	current []string // the files of the kernel whose blocks are inserted, if any
}

// join carries out the directives in text. It removes comments and indentation, which Redis would
// keep in memory.
func (j *joiner) join(text string) string {
	var out strings.Builder
	depth, dropped := 0, 0 // of "if", and of that whose lines are not in this script
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		directive, isDirective := strings.CutPrefix(line, directiveMark)
		condition, isIf := strings.CutPrefix(directive, "if ")
		switch {
		case isDirective && isIf:
			depth++
			if dropped == 0 && !j.has(condition) {
				dropped = depth
			}
		case isDirective && directive == "end":
			if dropped == depth {
				dropped = 0
			}
			depth--
		case dropped > 0:
		case isDirective && directive == "parts":
			out.WriteString(j.parts())
		case isDirective && directive == "kind":
			out.WriteString("local kind = " + strconv.Itoa(j.kind) + "\n")
		case isDirective:
			out.WriteString(j.join(j.block(directive)))
		default:
			code, _, _ := strings.Cut(line, "--")
			code = strings.TrimSpace(code)
			if code != "" {
				out.WriteString(code + "\n")
			}
		}
	}
	if depth != 0 {
		panic("redisstore: an if without an end in " + text)
	}
	return out.String()
}

// has reports whether the script has one of the things in a condition, or, after "not", none of
// them.
func (j *joiner) has(condition string) bool {
	words, not := strings.CutPrefix(condition, "not ")
	for _, word := range strings.Fields(words) {
		named := func(k kernel) bool { return k.name == word }
		if slices.Contains(j.words, word) || slices.ContainsFunc(j.kernels, named) {
			return !not
		}
	}
	return not
}

// block returns the text of a block: of the current kernel, which may lack it, or of a shared file.
// It panics if two files have it, unless the later one adds to the other.
func (j *joiner) block(name string) (text string) {
	known := false
	for file, blocks := range blocksOf() {
		_, has := blocks[name]
		known = known || has && (slices.Contains(sharedFiles, file) || j.current != nil)
	}
	if !known {
		panic("redisstore: no block " + name)
	}
	for _, file := range slices.Concat(j.current, sharedFiles) {
		own, more := blocksOf()[file][name], blocksOf()[file][name+adds]
		if own != "" && text != "" || more != "" && text == "" {
			panic("redisstore: the block " + name + " of " + file + ".lua is there twice, or adds to none")
		}
		text += own + more
	}
	return text
}

// parts returns part.lua for each kernel.
func (j *joiner) parts() (text string) {
	for _, k := range j.kernels {
		of := joiner{[]kernel{k}, int(kindOf(k.letter)), j.words, k.files}
		text += of.join(luaText("part"))
	}
	return text
}
