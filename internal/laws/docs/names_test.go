package docs_test

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/types"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/budget"
)

// TestDocumentedNamesExist looks up every text in backticks in README, CONTRIBUTING, BENCHMARKS and
// docs, tables included: names of Go, files and folders, commands with their flags, and words that
// programs exchange. The test fails if a name is gone, if a call has another number of arguments
// than the function, or if a composite literal has a field that its type lacks. Names of files, and
// commands, are looked up without backticks as well.
//
// Most pages are for users. Names in them are exported, and belong to packages that users import.
// Pages about the inside (see aboutInside) may name everything. If a name there is followed by a
// file, as in "`newLimit` (algorithm.go)", that file must declare the name.
//
// If the first column of a table begins with "there", it has names of another library. These names
// are not looked up, and the other columns of the row may repeat them.
func TestDocumentedNamesExist(t *testing.T) {
	budget.Alone(t)
	inRoot(t)
	r := newRepository(t)
	spans := 0
	used := make(map[string]bool)
	for _, page := range pages(t) {
		if page == "CHANGELOG.md" { // whose names are those of each version
			continue
		}
		text := read(t, page)
		p := r.page(page, text)
		for _, part := range p.parts {
			for _, span := range part.spans {
				spans++
				if known(page, span, used) || strings.Contains(part.theirs, span) {
					continue
				}
				if err := p.find(span, part.theirs); err != nil {
					t.Errorf("%s: `%s`: %v", page, span, err)
				}
			}
			for _, file := range part.files {
				if !known(page, file, used) && !r.hasPath("./"+file) {
					t.Errorf("%s: there is no file %s", page, file)
				}
			}
			for _, place := range part.places {
				if err := r.declares(place.file, place.name); err != nil {
					t.Errorf("%s: `%s` (%s): %v", page, place.name, place.file, err)
				}
			}
		}
		for _, line := range strings.Split(p.code, "\n") {
			if err := r.command(strings.TrimSpace(line)); err != nil {
				t.Errorf("%s: %s: %v", page, line, err)
			}
		}
	}
	require.Greater(t, spans, 500, "the search finds nothing")
	for _, e := range exceptions {
		for _, span := range e.spans {
			assert.True(t, used[e.page+span], "the exception `%s` of %s is not needed any more", span, e.page)
		}
	}
}

// aboutInside are the pages that may name parts of the repository that users do not see.
var aboutInside = []string{"CONTRIBUTING.md", "docs/design.md"}

// exceptions are what pages have in backticks and nothing in the repository has, and why.
var exceptions = []struct {
	page  string
	why   string
	spans []string
}{
	{"BENCHMARKS.md", "names of other libraries, of the runtime and of Redis", []string{
		"xsync.Map", "OnLimit", "TakeAvailable(1)", "LimitReached", "HeapAlloc", "MEMORY USAGE",
	}},
	{"CONTRIBUTING.md", "they stand for any file", []string{"x.go", "x_test.go"}},
	{"CONTRIBUTING.md", "a tag of a release, and a directive of go.mod", []string{"rules/v1.2.3", "retract"}},
	{"docs/coming-from.md", "names of other libraries", []string{"SetIgnoreURL(true)", "AS_IS"}},
	{"docs/databases.md", "settings of databases, of drivers and of database/sql", []string{
		"interpolateParams=true", "max_allowed_packet", "synchronous=NORMAL", "SetMaxOpenConns", "SetMaxIdleConns",
		"--auto-compaction-retention",
	}},
	{"docs/redis.md", "settings, commands and permissions of Redis", []string{
		"maxmemory-policy", "noeviction", "HELLO", "CLIENT", "CLIENT SETINFO", "ACL LOG", "SCRIPT FLUSH", "SCRIPT",
		"+client|tracking", "+cluster|slots", "+cluster|shards", "+command", "INCREX", "INCR",
	}},
	{"docs/redis.md", "a key as it is stored", []string{"rl:api@t3:192.0.2.1"}},
	{"docs/replay.md", "commands of other programs", []string{
		"zstdcat access.log.zst | go run ./examples/replay -", "docker logs -t", "docker compose logs",
	}},
	{"docs/rules.md", "a call of a rule", []string{"GET,POST /user/{id}"}},
	{"docs/testing.md", "what the code above prints", []string{"429 60", "false true 1s true"}},
}

// known reports whether a span of a page is an exception, and notes that it is used.
func known(page, span string, used map[string]bool) bool {
	for _, e := range exceptions {
		if e.page == page && slices.Contains(e.spans, span) {
			used[page+span] = true
			return true
		}
	}
	return false
}

// A repository has all that pages may name.
type repository struct {
	sources []source
	exports *declarations // the declarations that users see
	all     *declarations
	foreign *declarations // the declarations of other modules that this repository uses
	fields  []string      // the string literals of httplimit and the packages inside, among which are the names of header fields
	paths   []string      // of all files and folders
	texts   string        // all string literals, and all files that are not Go, except the pages
	targets string        // the Makefile
}

func newRepository(t *testing.T) *repository {
	t.Helper()
	r := &repository{sources: parseAll(t), exports: newDeclarations(), all: newDeclarations(), foreign: newDeclarations(), targets: read(t, "Makefile")}
	var texts bytes.Buffer
	for _, f := range r.sources {
		r.all.add(f, false)
		if forUsers(f.path) {
			r.exports.add(f, true)
		}
		r.foreign.addUses(f)
		if strings.HasPrefix(f.path, "internal/laws/docs/") {
			continue // this file has the exceptions
		}
		for _, text := range literals(f) {
			texts.WriteString(text + "\n")
		}
		if strings.HasPrefix(f.path, "httplimit/") && forUsers(f.path) {
			r.fields = append(r.fields, literals(f)...)
		}
	}
	require.NoError(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && d.Name() == ".git" {
			return filepath.SkipDir
		}
		path = filepath.ToSlash(path)
		r.paths = append(r.paths, "/"+path)
		switch filepath.Ext(path) {
		case ".lua", ".sql", ".js", ".mod", ".yml":
			texts.WriteString(read(t, path) + "\n")
		}
		return nil
	}))
	r.texts = texts.String()
	return r
}

// A page is a page of the documentation, without its code.
type page struct {
	*repository
	inside bool
	code   string
	parts  []part
}

// A part is a paragraph, an item of a list or a row of a table.
type part struct {
	spans  []string // the texts in backticks
	places []place
	files  []string // the names of files of code, in backticks or not
	theirs string   // the first column, if that has names of another library
}

// A place is a name and the file that is said to declare it.
type place struct{ name, file string }

var (
	fenced   = regexp.MustCompile("(?ms)^```.*?^```$")
	indented = regexp.MustCompile(`(?m)^ {4}.*$`)
	inTicks  = regexp.MustCompile("`([^`]+)`")
	placed   = regexp.MustCompile("((?:`[^`]+`, )*`[^`]+`) \\(([\\w/]+\\.go)\\)")
)

// page takes a page apart.
func (r *repository) page(file, text string) *page {
	p := &page{repository: r, inside: slices.Contains(aboutInside, file)}
	take := func(code string) string {
		p.code += code + "\n"
		return ""
	}
	text = indented.ReplaceAllStringFunc(fenced.ReplaceAllStringFunc(text, take), take)
	for _, paragraph := range strings.Split(text, "\n\n") {
		if !strings.HasPrefix(paragraph, "|") {
			p.add(strings.ReplaceAll(paragraph, "\n", " "), "")
			continue
		}
		rows := strings.Split(paragraph, "\n")
		for _, row := range rows {
			theirs := ""
			if strings.HasPrefix(rows[0], "| there |") {
				theirs, row, _ = strings.Cut(strings.TrimPrefix(row, "| "), " | ")
			}
			p.add(row, theirs)
		}
	}
	return p
}

// add adds a part.
func (p *page) add(text, theirs string) {
	one := part{theirs: theirs}
	for _, span := range inTicks.FindAllStringSubmatch(text, -1) {
		one.spans = append(one.spans, span[1])
	}
	for _, word := range strings.FieldsFunc(text, isNoPath) {
		word = strings.TrimSuffix(word, ".")
		if slices.Contains([]string{".go", ".lua", ".sql"}, filepath.Ext(word)) {
			one.files = append(one.files, word)
		}
	}
	if p.inside {
		for _, named := range placed.FindAllStringSubmatch(text, -1) {
			for _, span := range inTicks.FindAllStringSubmatch(named[1], -1) {
				one.places = append(one.places, place{span[1], named[2]})
			}
		}
	}
	p.parts = append(p.parts, one)
}

var (
	filePath   = regexp.MustCompile(`^[.\w][\w./-]*/[\w./-]+$|\.(go|lua|md|sql|sh)$`)
	headerLine = regexp.MustCompile(`^([A-Z][\w-]*): `)
	fieldPair  = regexp.MustCompile(`^[A-Z]\w*: `)
	aFlag      = regexp.MustCompile(`^-([a-z]+)( |$)`)
	variable   = regexp.MustCompile(`^([A-Z_]+)=\w+$`)
	protocol   = regexp.MustCompile(`^[A-Z][A-Z_]+$|^[\w-]*-[\w-]*$`)
	ellipsis   = regexp.MustCompile(`(^|[ ({])\.\.\.`)
)

// isNoPath reports whether no path has a character.
func isNoPath(r rune) bool {
	return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("_-./", r)
}

// etc stands for the dots in a call or a composite literal that is not written out.
const etc = "etc"

// find returns an error if a span names nothing that exists. theirs has names of another library.
func (p *page) find(span, theirs string) error {
	header := headerLine.FindStringSubmatch(span)
	flag := aFlag.FindStringSubmatch(span)
	setting := variable.FindStringSubmatch(span)
	first, _, _ := strings.Cut(span, " ")
	switch {
	case first == "go", first == "make":
		return p.command(span)
	case flag != nil:
		return p.flag(flag[1])
	case setting != nil:
		return p.says(setting[1])
	case p.isField(span), header != nil && p.isField(header[1]):
		return nil
	case p.hasPath(span), p.inside && p.target([]string{span}) == nil:
		return nil
	case filePath.MatchString(span) && !strings.Contains(p.texts, span):
		return fmt.Errorf("no file, folder or package has the path %s", span)
	case protocol.MatchString(span):
		return p.says(span)
	}
	code := strings.NewReplacer("…", etc, "−", "-").Replace(ellipsis.ReplaceAllString(span, "${1}"+etc))
	switch {
	case strings.HasPrefix(code, "."):
		code = "x" + code
	case fieldPair.MatchString(code):
		code = "x{" + code + "}"
	}
	expr, err := parser.ParseExpr(code)
	if err != nil {
		return p.says(span)
	}
	err = p.resolve(expr, theirs)
	if errors.Is(err, errNoName) {
		return p.says(span)
	}
	return err
}

// isField reports whether httplimit knows a header field.
func (p *page) isField(name string) bool {
	return slices.ContainsFunc(p.fields, func(field string) bool { return strings.EqualFold(field, name) })
}

// flag returns an error if no program that code on the page runs has a flag.
func (p *page) flag(name string) error {
	for _, line := range strings.Split(p.code, "\n") {
		_, run, ok := strings.Cut(line, "go run ")
		program, _, _ := strings.Cut(run, " ")
		if ok && flagsOf(p.sources, program)[name] {
			return nil
		}
	}
	return fmt.Errorf("no program that the page runs has a flag -%s", name)
}

// says returns an error if nothing in the repository has a text.
func (p *page) says(text string) error {
	if strings.Contains(p.texts, text) || strings.Contains(p.code, text) {
		return nil
	}
	return fmt.Errorf("neither a string in the code nor code on the page has this text")
}

// hasPath reports whether a path ends a path of the repository.
func (r *repository) hasPath(span string) bool {
	if !strings.ContainsAny(span, "./") || strings.HasPrefix(span, "/") {
		return false
	}
	end := "/" + strings.TrimSuffix(strings.TrimPrefix(span, "./"), "/")
	return slices.ContainsFunc(r.paths, func(path string) bool { return strings.HasSuffix(path, end) })
}

// errNoName says that an expression is of a kind that names nothing.
var errNoName = errors.New("it is no name")

// resolve returns an error if an expression has a name that is not declared.
func (p *page) resolve(e ast.Expr, theirs string) error {
	switch e := e.(type) {
	case *ast.Ident:
		return p.name(e.Name, theirs)
	case *ast.SelectorExpr:
		_, err := p.selected(e)
		return err
	case *ast.StarExpr:
		return p.resolve(e.X, theirs)
	case *ast.CallExpr:
		return p.call(e, theirs)
	case *ast.CompositeLit:
		return p.literal(e, theirs)
	case *ast.BinaryExpr:
		err := p.resolve(e.X, theirs)
		if err != nil {
			return err
		}
		return p.resolve(e.Y, theirs)
	case *ast.BasicLit:
		return nil
	}
	return errNoName
}

// seen returns the declarations that a page may name.
func (p *page) seen() *declarations {
	if p.inside {
		return p.all
	}
	return p.exports
}

// name returns an error if no declaration has the name. Code on the page may declare variables.
func (p *page) name(name, theirs string) error {
	isWord := regexp.MustCompile(`\b` + regexp.QuoteMeta(name) + `\b`).MatchString
	switch d := p.seen(); {
	case strings.HasPrefix(name, "Test") && p.all.names[name] != nil:
		return nil
	case d.names[name] != nil, p.foreign.names[name] != nil, types.Universe.Lookup(name) != nil, isWord(theirs):
		return nil
	case !ast.IsExported(name) && (p.all.packages[name] || p.hasPath("./"+name) || isWord(p.code) || isWord(p.texts)):
		return nil
	}
	return fmt.Errorf("nothing has the name %s", name)
}

// selected returns what a selector names: a declaration of a package, or a method or field of a
// type or variable.
func (p *page) selected(e *ast.SelectorExpr) (*declared, error) {
	d := p.seen()
	x, ok := e.X.(*ast.Ident)
	if !ok {
		return d.names[e.Sel.Name], p.name(e.Sel.Name, "")
	}
	name := x.Name + "." + e.Sel.Name
	found := d.packaged[name]
	if found == nil {
		found = d.members[name]
	}
	isVariable := !ast.IsExported(x.Name) && !d.types[x.Name] && !d.packages[x.Name] && !p.foreign.packages[x.Name]
	if found == nil {
		found = p.foreign.packaged[name]
	}
	if found == nil && isVariable {
		found = d.names[e.Sel.Name]
	}
	if found == nil {
		return nil, fmt.Errorf("nothing has the name %s", name)
	}
	return found, nil
}

// call returns an error if no function has the name and takes as many arguments as a call has.
func (p *page) call(e *ast.CallExpr, theirs string) error {
	var called *declared
	var err error
	switch fun := e.Fun.(type) {
	case *ast.Ident:
		called, err = p.seen().names[fun.Name], p.name(fun.Name, theirs)
	case *ast.SelectorExpr:
		called, err = p.selected(fun)
	default:
		err = p.resolve(fun, theirs)
	}
	if err != nil {
		return err
	}
	unwritten := e.Ellipsis.IsValid() || slices.ContainsFunc(e.Args, isEtc)
	if called != nil && !unwritten && !called.takes(len(e.Args)) {
		return fmt.Errorf("nothing of that name takes %d arguments", len(e.Args))
	}
	return p.arguments(e.Args)
}

// literal returns an error if a composite literal has a field that its type lacks.
func (p *page) literal(e *ast.CompositeLit, theirs string) error {
	of := ""
	switch name := e.Type.(type) {
	case *ast.Ident:
		of = name.Name
	case *ast.SelectorExpr:
		of = name.Sel.Name
	}
	ofAny := of == "x"
	if !ofAny {
		err := p.resolve(e.Type, theirs)
		if err != nil {
			return err
		}
	}
	for _, element := range e.Elts {
		pair, ok := element.(*ast.KeyValueExpr)
		if !ok {
			err := p.arguments([]ast.Expr{element})
			if err != nil {
				return err
			}
			continue
		}
		field, ok := pair.Key.(*ast.Ident)
		if !ok {
			return fmt.Errorf("%T is no field", pair.Key)
		}
		d := p.seen()
		if d.members[of+"."+field.Name] == nil && (!ofAny || d.names[field.Name] == nil) {
			return fmt.Errorf("%s has no field %s", of, field.Name)
		}
		err := p.arguments([]ast.Expr{pair.Value})
		if err != nil {
			return err
		}
	}
	return nil
}

// arguments returns an error if a value has a name that is not declared. Lower-case names are not
// looked up, because they name variables of the call.
func (p *page) arguments(values []ast.Expr) error {
	for _, value := range values {
		if ident, ok := value.(*ast.Ident); ok && !ast.IsExported(ident.Name) {
			continue
		}
		if binary, ok := value.(*ast.BinaryExpr); ok {
			err := p.arguments([]ast.Expr{binary.X, binary.Y})
			if err != nil {
				return err
			}
			continue
		}
		err := p.resolve(value, "")
		if err != nil {
			return err
		}
	}
	return nil
}

func isEtc(e ast.Expr) bool {
	ident, ok := e.(*ast.Ident)
	return ok && ident.Name == etc
}

// declares returns an error if a file does not declare a name.
func (r *repository) declares(file, name string) error {
	found := r.all.names[name]
	if strings.Contains(name, ".") {
		found = r.all.members[name]
	}
	if found == nil {
		return errors.New("nothing has this name")
	}
	for _, path := range found.files {
		if strings.HasSuffix("/"+path, "/"+file) {
			return nil
		}
	}
	return fmt.Errorf("the name is declared in %s", strings.Join(slices.Compact(found.files), ", "))
}

var flagOf = regexp.MustCompile(` --?([a-z][a-z-]*)`)

// command returns an error if a line of a shell names something that does not exist: a program of
// this repository or its flag, a module, a script, or a target or variable of the Makefile. Other
// programs are ignored.
func (r *repository) command(line string) error {
	line, _, _ = strings.Cut(line, " #")
	words := strings.Fields(line)
	switch {
	case len(words) == 0:
		return nil
	case strings.HasPrefix(words[0], "scripts/"), strings.HasPrefix(words[0], ".ci/"), strings.HasPrefix(words[0], "benchmarks/"):
		_, err := os.Stat(words[0])
		return err
	case words[0] == "make":
		return r.target(words[1:])
	}
	if i := strings.Index(line, "go run "); i >= 0 {
		return r.program(strings.TrimPrefix(line[i:], "go run "))
	}
	if len(words) == 3 && words[0] == "go" && words[1] == "get" {
		dir := strings.TrimPrefix(strings.TrimPrefix(words[2], modulePath), "/")
		_, err := os.Stat(filepath.Join(dir, "go.mod"))
		return err
	}
	return nil
}

// program returns an error if a program is not in the repository, or lacks a flag of the command.
func (r *repository) program(line string) error {
	name, args, _ := strings.Cut(line, " ")
	_, err := os.Stat(name)
	if err != nil {
		return err
	}
	flags := flagsOf(r.sources, name)
	quoted := regexp.MustCompile(`'[^']*'`)
	for _, flag := range flagOf.FindAllStringSubmatch(" "+quoted.ReplaceAllString(args, ""), -1) {
		if !flags[flag[1]] {
			return fmt.Errorf("%s has no flag -%s", name, flag[1])
		}
	}
	return nil
}

// target returns an error if the Makefile lacks a target or a variable that is given to it.
func (r *repository) target(words []string) error {
	for _, word := range words {
		name, _, isVariable := strings.Cut(word, "=")
		found := regexp.MustCompile(`(?m)^([\w-]+ )*` + regexp.QuoteMeta(name) + `( [\w-]+)*:( |$)`)
		if isVariable {
			found = regexp.MustCompile(`\$\(([a-z]+ )?` + regexp.QuoteMeta(name) + `\)`)
		}
		if !found.MatchString(r.targets) {
			return fmt.Errorf("the Makefile has no %s", name)
		}
	}
	return nil
}

// TestFind checks that names that are gone, or never existed, are not found, on a page for users
// and on a page about the inside.
func TestFind(t *testing.T) {
	budget.Alone(t)
	inRoot(t)
	r := newRepository(t)
	const code = "\n\n    go run ./examples/replay\n\n```go\nvisits := 1\n```\n"
	users, inside := r.page("README.md", code), r.page("docs/design.md", code)
	for span, seen := range map[string]struct{ byUsers, inside bool }{
		"TokenBucket":       {true, true},
		"TokenBuckets":      {false, false},
		"newLimit":          {false, true},
		"Take(ctx, key, n)": {true, true},
		"HoldAll(ctx)":      {false, false},
		"AllowN(n)":         {false, false},
		"TakeAll(ctx, n, For(limiter, key), …)": {true, true},
		"TakeAll(ctx, n, Four(limiter, key))":   {false, false},
		"Decision.RetryAfter":                   {true, true},
		"Decision.Retry":                        {false, false},
		"d.RetryAfter":                          {true, true},
		"d.Retry":                               {false, false},
		"httplimit.WithKey":                     {true, true},
		"httplimit.WithKeys":                    {false, false},
		"ratelimit.WithKey":                     {false, false},
		"limiter.takes":                         {false, false},
		"MemoryStore{MaxKeys: n}":               {true, true},
		"MemoryStore{MostKeys: n}":              {false, false},
		"Burst: 10":                             {true, true},
		"Bursts: 10":                            {false, false},
		"http.Server":                           {true, true},
		"http.Limiter":                          {false, false},
		"visits":                                {true, true},
		"Retry-After":                           {true, true},
		"Retry-Before":                          {false, false},
		"RateLimit":                             {true, true},
		"READONLY":                              {true, true},
		"WRITEONLY":                             {false, false},
		"TestFind":                              {true, true},
		"TestFound":                             {false, false},
		"internal/line":                         {true, true},
		"internal/lines":                        {false, false},
		"take.go":                               {true, true},
		"takes.go":                              {false, false},
		"bucket.lua":                            {true, true},
		"buckets.lua":                           {false, false},
		"examples/httpserver":                   {true, true},
		"make mutants":                          {true, true},
		"make mutant":                           {false, false},
		"make mutants SEED=1":                   {true, true},
		"make mutants SEEDS=1":                  {false, false},
		"night-fuzz":                            {false, true},
		"RATELIMIT_NIGHTLY=1":                   {true, true},
		"RATELIMIT_DAILY=1":                     {false, false},
		"-key":                                  {true, true},
		"-keys":                                 {false, false},
		"go run ./examples/replay -limit 1/1m":  {true, true},
		"go run ./examples/replay -most 1/1m":   {false, false},
		"go run ./examples/replays":             {false, false},
		"go get " + modulePath + "/rules":       {true, true},
		"go get " + modulePath + "/httplimit":   {false, false},
	} {
		assert.Equal(t, seen.byUsers, users.find(span, "") == nil, "for users: %s", span)
		assert.Equal(t, seen.inside, inside.find(span, "") == nil, "inside: %s", span)
	}
	assert.NoError(t, r.declares("limiter.go", "New"))
	assert.NoError(t, r.declares("memory/apply.go", "lockedSlot.step"))
	assert.Error(t, r.declares("all.go", "New"))
	assert.Error(t, r.declares("memory/decider.go", "lockedSlot.step"))
}
