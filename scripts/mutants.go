//go:build ignore

// Mutants changes the code in random places, one at a time, and lists the changes that no test
// notices. Run it by make mutants, in the root of the repository. The files themselves are not
// touched: go test -overlay reads the changed text from elsewhere. A seed repeats a run on
// unchanged files.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"log"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// laws are some tests of the root and of the packages of its laws that notice most mutants in a few seconds.
const laws = "Metamorphic|Extremes|Debt|TakeAllAnswers|TwoLimiters|LimitsOfKeys|SettleExactly|SettleNested|SettleSchedules|JointStatesAnswer|FullStore"

// A check is the tests of a package that go test -short runs, or those whose names match run.
type check struct{ module, pkg, run string }

// subjects are the files that are changed, and what should notice it, the quickest first.
var subjects = []struct {
	files  string
	checks []check
}{
	{"internal/kernel/*.go", slices.Concat([]check{{".", "internal/kernel", ""}}, root, []check{{".", "storetest", ""}, {"integration", "redis", "Fuzz|Conformance|Adopt"}})},
	{"internal/memory/*.go", slices.Concat([]check{{".", "internal/memory", ""}}, root, []check{{"integration", "linear", ""}})},
	{"[a-z]*.go", slices.Concat(root, []check{{".", "storetest", ""}, {"integration", "linear", ""}})},
	{"redisstore/lua/*.lua", []check{{"integration", "redis", "Fuzz"}, {"integration", "redis", ""}}},
}

// root has the tests of the root package, which are in it and in the packages of its laws.
var root = slices.Concat(
	checks(laws, ".", "internal/laws/decide", "internal/laws/memory"),
	checks("", ".", "internal/laws/fault", "internal/laws/seen", "internal/laws/docs", "internal/laws/wait", "internal/laws/memory", "internal/laws/decide"),
)

// checks returns a check of each package.
func checks(run string, packages ...string) (all []check) {
	for _, pkg := range packages {
		all = append(all, check{".", pkg, run})
	}
	return all
}

// A mutant replaces the bytes of file from start to end.
type mutant struct {
	file       string
	start, end int
	with       string
	checks     []check
}

func main() {
	n := flag.Int("n", 200, "mutants that compile")
	seed := flag.Uint64("seed", uint64(time.Now().UnixNano()), "of the random choice")
	only := flag.String("files", "", "a regular expression of files; by default all")
	flag.Parse()
	log.SetFlags(0)
	wanted := regexp.MustCompile(*only)
	var all []mutant
	for _, s := range subjects {
		files, err := filepath.Glob(s.files)
		must(err)
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") || !wanted.MatchString(file) {
				continue
			}
			text, err := os.ReadFile(file)
			must(err)
			find := inLua
			if strings.HasSuffix(file, ".go") {
				find = inGo
			}
			for _, m := range find(string(text)) {
				m.file, m.checks = file, s.checks
				all = append(all, m)
			}
		}
	}
	rng := rand.New(rand.NewPCG(*seed, 0))
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	fmt.Printf("seed %d: %d of %d mutants\n", *seed, *n, len(all))
	var survivors []string
	tried := 0
	for _, m := range all {
		if tried == *n {
			break
		}
		begin := time.Now()
		by, compiles := m.noticed()
		if !compiles {
			continue
		}
		tried++
		line := m.String()
		if by == "" {
			by, survivors = "NOTHING", append(survivors, line)
		}
		fmt.Printf("%3d %s: by %s in %s\n", tried, line, by, time.Since(begin).Round(time.Second))
	}
	fmt.Printf("\n%d of %d noticed. The others:\n%s\n", tried-len(survivors), tried, strings.Join(survivors, "\n"))
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// String returns the line with the change.
func (m *mutant) String() string {
	text, err := os.ReadFile(m.file)
	must(err)
	from := strings.LastIndexByte(string(text[:m.start]), '\n') + 1
	to := m.end + strings.IndexByte(string(text[m.end:])+"\n", '\n')
	line := string(text[from:m.start]) + "«" + string(text[m.start:m.end]) + "»→«" + m.with + "»" + string(text[m.end:to])
	return fmt.Sprintf("%s:%d: %s", m.file, 1+strings.Count(string(text[:m.start]), "\n"), strings.Join(strings.Fields(line), " "))
}

// noticed returns the test that notices m first, or "".
func (m *mutant) noticed() (by string, compiles bool) {
	dir, err := os.MkdirTemp("", "mutant")
	must(err)
	defer os.RemoveAll(dir)
	text, err := os.ReadFile(m.file)
	must(err)
	changed, overlay := filepath.Join(dir, filepath.Base(m.file)), filepath.Join(dir, "overlay.json")
	original, err := filepath.Abs(m.file)
	must(err)
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{original: changed}})
	must(err)
	must(os.WriteFile(changed, slices.Concat(text[:m.start], []byte(m.with), text[m.end:]), 0o600))
	must(os.WriteFile(overlay, replace, 0o600))
	for i, c := range m.checks {
		limit := c.limit()
		binary := filepath.Join(dir, c.binary())
		if _, err := os.Stat(binary); err != nil {
			if err := c.build(binary, "-overlay", overlay); err != nil {
				if i > 0 { // it is not the mutant that does not compile
					log.Fatal(err)
				}
				return "", false
			}
		}
		by, test := c.fails(binary, c.run, limit)
		if test != "" {
			by, _ = c.fails(binary, "^"+test+"$", limit) // once more, because a test that needs time may fail by itself
		}
		if by != "" {
			return by, true
		}
	}
	return "", true
}

// limits has the time that each check may take.
var limits = map[check]time.Duration{}

// limit returns the time that c may take: several times as long as on the unchanged code, on which
// it must not fail.
func (c check) limit() time.Duration {
	if limits[c] == 0 {
		dir, err := os.MkdirTemp("", "unchanged")
		must(err)
		defer os.RemoveAll(dir)
		binary := filepath.Join(dir, c.binary())
		must(c.build(binary))
		begin := time.Now()
		if by, _ := c.fails(binary, c.run, time.Hour); by != "" {
			log.Fatalf("%+v: %s fails on the unchanged code", c, by)
		}
		limits[c] = 5*time.Since(begin) + 10*time.Second
	}
	return limits[c]
}

// binary returns the name of the program with the tests of c.
func (c check) binary() string { return strings.ReplaceAll(c.module+c.pkg, "/", "-") + ".test" }

// build compiles that program.
func (c check) build(binary string, flags ...string) error {
	build := exec.Command("go", slices.Concat([]string{"test", "-c", "-vet=off", "-ldflags=-w", "-o", binary}, flags, []string{"./" + c.pkg})...)
	build.Dir, build.Env = c.module, append(os.Environ(), "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %w: %s", build, err, out)
	}
	return nil
}

// fails runs those tests of c whose names match run. It returns what fails first, or "", and the
// test if it is one.
func (c check) fails(binary, run string, limit time.Duration) (by, test string) {
	skip := ""
	if c.run == "" && (c.module+c.pkg == ".." || strings.HasPrefix(c.pkg, "internal/laws/")) {
		skip = laws // they have run
	}
	// A mutant may loop and allocate without end.
	cmd := exec.Command("sh", "-c", `ulimit -v 8000000; exec "$@"`, "sh", binary, "-test.failfast",
		fmt.Sprintf("-test.short=%t", c.run == ""), "-test.timeout", limit.String(), "-test.run", run, "-test.skip", skip)
	cmd.Dir = filepath.Join(c.module, c.pkg)
	out, err := cmd.CombinedOutput()
	if err == nil {
		return "", ""
	}
	if died := regexp.MustCompile(`(?m)^(panic: .*|fatal error: .*)`).Find(out); died != nil {
		return string(died), ""
	}
	if failed := regexp.MustCompile(`(?m)^--- FAIL: (\S+)`).FindSubmatch(out); failed != nil {
		return string(failed[1]), string(failed[1])
	}
	return err.Error(), ""
}

var swaps = map[string]string{
	"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "~=": "==",
	"+": "-", "-": "+", "*": "/", "/": "*", "%": "*", "&": "|", "|": "&", "&^": "&", "^": "|", "<<": ">>", ">>": "<<",
	"&&": "||", "||": "&&", "and": "or", "or": "and",
	"+=": "-=", "-=": "+=", "|=": "&=", "&=": "|=", "<<=": ">>=", ">>=": "<<=", "++": "--", "--": "++",
}

// inGo returns the mutants of a Go file: another operator, a condition that is negated, a number
// that is one more, a statement that is left out.
func inGo(text string) (all []mutant) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, "", text, parser.SkipObjectResolution)
	must(err)
	change := func(from, to token.Pos, with string) {
		all = append(all, mutant{start: files.Position(from).Offset, end: files.Position(to).Offset, with: with})
	}
	operator := func(at token.Pos, op token.Token) {
		if with := swaps[op.String()]; with != "" {
			change(at, at+token.Pos(len(op.String())), with)
		}
	}
	ast.Inspect(file, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.BinaryExpr:
			operator(node.OpPos, node.Op)
		case *ast.UnaryExpr:
			if node.Op == token.NOT {
				change(node.OpPos, node.OpPos+1, "")
			}
		case *ast.BasicLit:
			if node.Kind == token.INT {
				change(node.Pos(), node.End(), "("+node.Value+" + 1)")
			}
		case *ast.AssignStmt:
			if operator(node.TokPos, node.Tok); node.Tok != token.DEFINE {
				change(node.Pos(), node.End(), "{}")
			}
		case *ast.IncDecStmt:
			operator(node.TokPos, node.Tok)
			change(node.Pos(), node.End(), "{}")
		case *ast.ExprStmt, *ast.DeferStmt, *ast.BranchStmt:
			change(node.Pos(), node.End(), "{}")
		case *ast.ReturnStmt:
			if node.Results == nil {
				change(node.Pos(), node.End(), "{}")
			}
		case *ast.ImportSpec:
			return false
		}
		return true
	})
	return all
}

// skipped are a script's comments and strings; changeable is what may be changed besides.
var (
	skipped    = regexp.MustCompile(`--[^\n]*|'[^'\n]*'|"[^"\n]*"`)
	changeable = regexp.MustCompile(` (<=|>=|==|~=|<|>|\+|-|\*|/|%|and|or) |\b(not) |\b(\d+)\b|(?m)^ *([a-z.]+ = [^\n{]*[^\n{(,])$`)
)

// inLua returns the same mutants of a script.
func inLua(text string) (all []mutant) {
	blank := skipped.ReplaceAllStringFunc(text, func(s string) string { return strings.Repeat("_", len(s)) })
	for _, at := range changeable.FindAllStringSubmatchIndex(blank, -1) {
		switch {
		case at[2] >= 0:
			all = append(all, mutant{start: at[2], end: at[3], with: swaps[text[at[2]:at[3]]]})
		case at[4] >= 0:
			all = append(all, mutant{start: at[4], end: at[5]})
		case at[6] >= 0:
			all = append(all, mutant{start: at[6], end: at[7], with: "(" + text[at[6]:at[7]] + "+1)"})
		case at[8] >= 0:
			all = append(all, mutant{start: at[8], end: at[9]})
		}
	}
	return all
}
