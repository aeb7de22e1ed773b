//go:build ignore

// Mutants changes the code of every library package in random places, one at a time, and lists the
// changes that no test notices. Run it by make mutants, in the root of the repository. The files
// themselves are not touched: go test -overlay reads the changed text from elsewhere.
//
// A seed repeats a run on unchanged files. With -results, a run goes on where the last one with the
// same file stopped, or was stopped:
//
//	go run scripts/mutants.go -seed 20260301 -results mutants.json -n 10
//
// With -matrix, every mutant meets all its checks, and not only until one notices it. Then the
// result says which checks notice what others miss.
package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"log"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// laws are some tests of the root and of the packages of its laws that notice most mutants in a few seconds.
const laws = "Metamorphic|Extremes|Debt|TakeAllAnswers|Bounds|LimitsOfKeys|SettleExactly|SettleNested|JointStatesAnswer|FullStore"

// A check is the tests of a package that go test -short runs, or those whose names match run.
type check struct{ module, pkg, run string }

// subjects are the files that are changed, and what should notice it, the quickest first. The first check builds the
// changed package.
var subjects = []struct {
	files  string
	checks []check
}{
	{"internal/kernel/*.go", slices.Concat(checks("", "internal/kernel", "internal/step"), root, []check{{".", "storetest", ""}, {"integration", "redis", "Fuzz|Conformance|Adopt"}})},
	{"internal/step/*.go", slices.Concat(checks("", "internal/step"), root, []check{{".", "storetest", ""}, {"integration", "redis", "Fuzz|Conformance|Adopt"}})},
	{"internal/timeline/*.go", slices.Concat(checks("", "internal/timeline"), root)},
	{"internal/calendar/*.go", slices.Concat(checks("", "internal/calendar", "internal/kernel", "internal/laws/decide"), []check{{".", "storetest", ""}})},
	{"internal/memory/*.go", slices.Concat([]check{{".", "internal/memory", ""}}, root, []check{{"integration", "linear", ""}})},
	{"[a-z]*.go", slices.Concat(root, []check{{".", "storetest", ""}, {"integration", "linear", ""}})},
	{"redisstore/internal/script/lua/*.lua", []check{{"integration", "redis", "Fuzz"}, {"integration", "redis", ""}}},

	{"internal/limit/*.go", slices.Concat(checks("", "internal/limit"), root, checks("", "storetest"))},
	{"internal/line/*.go", slices.Concat(checks("", "internal/line", "internal/laws/wait"), root)},
	{"internal/casstore/*.go", checks("", "internal/casstore", "storetest", "internal/laws/fault", "internal/laws/decide")},
	{"internal/uint128/*.go", checks("", "internal/uint128", "internal/kernel", "internal/step")},
	{"internal/warmup/*.go", slices.Concat(checks("", "internal/kernel", "internal/step", "redisstore"), []check{{"integration", "redis", "Fuzz"}})},
	{"internal/param/*.go", slices.Concat(checks("", "internal/param", "internal/limit"), root, checks("", "httplimit", "httplimit/client", "iolimit"))},
	{"internal/logvalve/*.go", slices.Concat(checks("", "internal/logvalve", "internal/laws/seen", "observe"), root)},
	{"internal/ends/*.go", slices.Concat(checks("", "httplimit", "storetest"), root)},
	{"internal/handback/*.go", checks("", "httplimit")},
	{"internal/stray/*.go", slices.Concat(checks("", "internal/stray", "internal/laws/fault", "internal/casstore", "redisstore", "storetest"), root)},
	{"internal/topk/*.go", checks("", "internal/topk", "observe")},
	{"internal/byname/*.go", checks("", "internal/byname", "observe", "limitpage")},
	{"keyhint/*.go", slices.Concat(checks("", "keyhint", "iolimit"), []check{{"rules", ".", ""}}, root)},
	{"internal/ascii/*.go", checks("", "httplimit", "httplimit/key", "httplimit/clientip")},

	{"redisstore/*.go", slices.Concat(checks("", "redisstore"), []check{{"integration", "redis", "Fuzz"}, {"integration", "redis", ""}})},
	{"redisstore/internal/script/*.go", slices.Concat(checks("", "redisstore/internal/script", "redisstore"), []check{{"integration", "redis", "Fuzz"}, {"integration", "redis", ""}})},
	{"redisstore/goredis/*.go", []check{{"redisstore/goredis", ".", ""}, {"integration", "redis", ""}}},
	{"redisstore/rueidis/*.go", []check{{"redisstore/rueidis", ".", ""}, {"integration", "redis", ""}}},
	{"redisstore/valkey/*.go", []check{{"redisstore/valkey", ".", ""}, {"integration", "redis", ""}}},
	{"sqlstore/*.go", []check{{"sqlstore", ".", ""}, {"integration", "databases", ""}}},
	{"storetest/*.go", slices.Concat(checks("", "storetest"), []check{{"integration", "databases", ""}})},
	{"ratelimittest/*.go", checks("", "ratelimittest")},

	{"httplimit/*.go", slices.Concat(checks("", "httplimit"), []check{{"connectlimit", ".", ""}, {"integration", "fields", ""}})},
	{"httplimit/internal/policy/*.go", checks("", "httplimit")},
	{"httplimit/key/*.go", checks("", "httplimit/key", "httplimit")},
	{"httplimit/clientip/*.go", checks("", "httplimit/clientip", "httplimit")},
	{"httplimit/client/*.go", slices.Concat(checks("", "httplimit/client"), []check{{"grpclimit", ".", ""}, {"connectlimit", ".", ""}, {"integration", "fields", ""}})},
	{"httplimit/routers/ginlimit/*.go", []check{{"httplimit/routers", "ginlimit", ""}}},
	{"httplimit/routers/echolimit/*.go", []check{{"httplimit/routers", "echolimit", ""}}},
	{"grpclimit/*.go", []check{{"grpclimit", ".", ""}}},
	{"connectlimit/*.go", []check{{"connectlimit", ".", ""}}},
	{"iolimit/*.go", checks("", "iolimit")},
	{"observe/*.go", checks("", "observe", "limitpage")},
	{"otellimit/*.go", []check{{"otellimit", ".", ""}}},
	{"limitpage/*.go", checks("", "limitpage")},
	{"rules/*.go", []check{{"rules", ".", ""}, {"integration", "databases", ""}}},
}

// untried are the packages in which nothing is changed: they are there for tests only.
var untried = []string{"internal/budget", "internal/fakeredis", "internal/fakes", "internal/history", "internal/laws/frontend", "internal/model", "internal/stepclock"}

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
	n := flag.Int("n", 200, "mutants that compile, in this run")
	seed := flag.Uint64("seed", uint64(time.Now().UnixNano()), "of the random choice")
	only := flag.String("files", "", "a regular expression of files; by default all")
	matrix := flag.Bool("matrix", false, "tell of each mutant which checks notice it, and not only the first one")
	file := flag.String("results", "", "a file of results, to which the run adds its own, and which it does not try again")
	flag.Parse()
	log.SetFlags(0)
	requireAllPackages()
	all := mutantsOf(regexp.MustCompile(*only))
	rng := rand.New(rand.NewPCG(*seed, 0))
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	results := openResults(*file, run{Seed: *seed, Files: *only, Matrix: *matrix, Code: digest(all)})
	fmt.Printf("seed %d: %d of %d mutants, after %d\n", *seed, *n, len(all), len(results.all))

	tried := 0
	for _, m := range all[len(results.all):] {
		if tried == *n {
			break
		}
		begin := time.Now()
		by, compiles := m.noticed(*matrix)
		r := result{Mutant: m.String(), By: by, Compiles: compiles}
		results.add(r)
		if !compiles {
			continue
		}
		tried++
		fmt.Printf("%3d %s: by %s in %s\n", tried, r.Mutant, r.who(), time.Since(begin).Round(time.Second))
	}
	results.print(*matrix)
}

// mutantsOf returns the mutants of the files whose names match wanted, in the order of the subjects.
func mutantsOf(wanted *regexp.Regexp) (all []mutant) {
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
	return all
}

// requireAllPackages fails if a library package is in none of the subjects, so that a new one is not forgotten.
func requireAllPackages() {
	covered := make(map[string]bool)
	for _, s := range subjects {
		covered[filepath.Dir(s.files)] = true
	}
	for _, dir := range untried {
		covered[dir] = true
	}
	must(filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if !entry.IsDir() || path == "." {
			return nil
		}
		switch strings.Split(path, "/")[0] {
		case ".git", ".ci", ".github", "benchmarks", "docs", "examples", "integration", "scripts":
			return fs.SkipDir
		}
		files, err := filepath.Glob(path + "/*.go")
		library := slices.ContainsFunc(files, func(file string) bool { return !strings.HasSuffix(file, "_test.go") })
		if library && !covered[path] {
			return fmt.Errorf("package %s is in none of the subjects: add it to them, with the tests that should notice its mutants", path)
		}
		return err
	}))
}

// A run is what the results in a file are of.
type run struct {
	Seed   uint64
	Files  string // a regular expression
	Matrix bool
	Code   string // the digest of all mutants, which changes with the files
}

// digest returns a number that differs if the mutants do, in number, in order or in what they change.
func digest(all []mutant) string {
	sum := sha256.New()
	for _, m := range all {
		fmt.Fprintln(sum, m.file, m.start, m.end, m.with)
	}
	return fmt.Sprintf("%x", sum.Sum(nil)[:8])
}

// A result says which tests have noticed a mutant: none, the first one, or with -matrix one of each check.
type result struct {
	Mutant   string
	By       []string `json:",omitempty"`
	Compiles bool
}

func (r result) who() string {
	if len(r.By) == 0 {
		return "NOTHING"
	}
	return strings.Join(r.By, ", ")
}

// results are those of all runs with one file: a line with the run, and a line for each mutant, in their order.
type results struct {
	all []result
	to  *os.File // nil without a file
}

// openResults reads the results in a file. They must be of the same run.
func openResults(name string, of run) *results {
	r := new(results)
	if name == "" {
		return r
	}
	text, err := os.ReadFile(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Fatal(err)
	}
	r.to, err = os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	must(err)
	if len(text) == 0 {
		r.write(of)
		return r
	}
	lines := json.NewDecoder(bytes.NewReader(text))
	var was run
	must(lines.Decode(&was))
	if was != of {
		log.Fatalf("%s has results of %+v, and this run is %+v: give its -seed, -files and -matrix on the code that it is of, or name another file", name, was, of)
	}
	for lines.More() {
		var one result
		if err := lines.Decode(&one); err != nil {
			log.Fatalf("%s, line %d: %v: remove the line, which a run that was stopped has not finished", name, len(r.all)+2, err)
		}
		r.all = append(r.all, one)
	}
	return r
}

// add notes a result, and writes it to the file at once, so that a run which is stopped loses one mutant.
func (r *results) add(one result) {
	r.all = append(r.all, one)
	r.write(one)
}

func (r *results) write(line any) {
	if r.to == nil {
		return
	}
	must(json.NewEncoder(r.to).Encode(line))
}

// print says how many mutants were noticed in all runs, and which were not. With a matrix, it also says how many each
// check has noticed, and how many no other one has.
func (r *results) print(matrix bool) {
	var survivors []string
	tried := 0
	noticed, alone := make(map[string]int), make(map[string]int)
	for _, one := range r.all {
		if !one.Compiles {
			continue
		}
		tried++
		if len(one.By) == 0 {
			survivors = append(survivors, one.Mutant)
		}
		for _, by := range one.By {
			check, _, _ := strings.Cut(by, ": ")
			noticed[check]++
			if len(one.By) == 1 {
				alone[check]++
			}
		}
	}
	if matrix {
		fmt.Println("\nnoticed  alone  by")
		for _, check := range slices.Sorted(maps.Keys(noticed)) {
			fmt.Printf("%7d %6d  %s\n", noticed[check], alone[check], check)
		}
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

// noticed returns the test that notices m first, or with matrix the first one of each check, after the name of the
// check.
func (m *mutant) noticed(matrix bool) (all []string, compiles bool) {
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
				return nil, false
			}
		}
		by, test := c.fails(binary, c.run, limit)
		if test != "" {
			by, _ = c.fails(binary, "^"+test+"$", limit) // once more, because a test that needs time may fail by itself
		}
		if by == "" {
			continue
		}
		all = append(all, c.String()+": "+by)
		if !matrix {
			break
		}
	}
	return all, true
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
		by, test := c.fails(binary, c.run, time.Hour)
		if test != "" {
			log.Printf("%v: %s fails on the unchanged code, and is tried once more", c, by)
			by, _ = c.fails(binary, "^"+test+"$", time.Hour)
		}
		if by != "" {
			log.Fatalf("%v: %s fails on the unchanged code", c, by)
		}
		limits[c] = 5*time.Since(begin) + 10*time.Second
	}
	return limits[c]
}

// String returns the package, and which of its tests run if not all do.
func (c check) String() string {
	if c.run == "" {
		return path.Join(c.module, c.pkg)
	}
	return path.Join(c.module, c.pkg) + " -run " + c.run
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
	if c.run == "" && slices.Contains(root, check{c.module, c.pkg, laws}) {
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
	changeable = regexp.MustCompile(` (<=|>=|==|~=|<|>|\+|-|\*|/|%|and|or) |\b(not) |\b(\d+)\b|(?m)^ *([A-Za-z.]+ = [^\n{]*[^\n{(,])$`)
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
		case at[8] >= 0 && !strings.Contains(text[at[8]:at[9]], "= function("): // which would leave its end
			all = append(all, mutant{start: at[8], end: at[9]})
		}
	}
	return all
}
