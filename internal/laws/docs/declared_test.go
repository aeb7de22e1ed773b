package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// modulePath is the import path of the root module, with which those of all packages begin.
const modulePath = "github.com/ratelimit-go/ratelimit"

// A declared is all that the repository declares under one name: functions, types, methods, fields,
// constants and variables.
type declared struct {
	files []string    // the files that declare the name
	funcs []signature // of the functions and methods
	other bool        // whether something else has the name, which may be called as well
}

// A signature says how many arguments a function takes.
type signature struct {
	params   int
	variadic bool // whether the last parameter takes any number of arguments
}

// takes reports whether a declaration of the name can be called with a number of arguments.
func (d *declared) takes(args int) bool {
	if d.other {
		return true
	}
	for _, f := range d.funcs {
		if args == f.params || f.variadic && args >= f.params-1 {
			return true
		}
	}
	return false
}

// declarations are the names that a part of the repository's packages declares.
type declarations struct {
	names    map[string]*declared // all declarations, by name
	packaged map[string]*declared // declarations at the top level, by "package.Name"
	members  map[string]*declared // methods and fields, by "Type.Name"
	types    map[string]bool
	packages map[string]bool
}

func newDeclarations() *declarations {
	return &declarations{
		names:    make(map[string]*declared),
		packaged: make(map[string]*declared),
		members:  make(map[string]*declared),
		types:    make(map[string]bool),
		packages: make(map[string]bool),
	}
}

// A source is a Go file of the repository.
type source struct {
	path string
	*ast.File
}

// parseAll returns all Go files of the repository.
func parseAll(t *testing.T) (parsed []source) {
	t.Helper()
	set := token.NewFileSet()
	for _, file := range files(t, func(string) bool { return true }) {
		f, err := parser.ParseFile(set, file, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		parsed = append(parsed, source{file, f})
	}
	return parsed
}

// forUsers reports whether users import the package of a file, so that its exported names are known to them.
func forUsers(file string) bool {
	top, _, _ := strings.Cut(file, "/")
	return !strings.HasSuffix(file, "_test.go") && !strings.Contains("/"+file, "/internal/") &&
		top != "examples" && top != "integration" && top != "benchmarks" && top != "scripts"
}

// add adds what a file declares at its top level, and the methods and fields of its types.
func (d *declarations) add(f source, exportedOnly bool) {
	pkg := f.Name.Name
	d.packages[pkg] = true
	wanted := func(name string) bool { return ast.IsExported(name) || !exportedOnly }
	note := func(name, key string, in map[string]*declared, fn *ast.FuncType) {
		if !wanted(name) {
			return
		}
		d.names[name] = with(d.names[name], f.path, fn)
		in[key] = with(in[key], f.path, fn)
	}
	for _, decl := range f.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			name := decl.Name.Name
			if decl.Recv == nil {
				note(name, pkg+"."+name, d.packaged, decl.Type)
			} else {
				note(name, typeName(decl.Recv.List[0].Type)+"."+name, d.members, decl.Type)
			}
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				switch spec := spec.(type) {
				case *ast.ValueSpec:
					for _, name := range spec.Names {
						note(name.Name, pkg+"."+name.Name, d.packaged, nil)
					}
				case *ast.TypeSpec:
					name := spec.Name.Name
					note(name, pkg+"."+name, d.packaged, nil)
					if wanted(name) {
						d.types[name] = true
					}
					for _, member := range membersOf(spec.Type) {
						fn, _ := member.Type.(*ast.FuncType)
						for _, ident := range member.Names {
							note(ident.Name, name+"."+ident.Name, d.members, fn)
						}
					}
				}
			}
		}
	}
}

// membersOf returns the fields of a struct, or the methods of an interface.
func membersOf(of ast.Expr) []*ast.Field {
	switch of := of.(type) {
	case *ast.StructType:
		return of.Fields.List
	case *ast.InterfaceType:
		return of.Methods.List
	}
	return nil
}

// with adds one more declaration to d, or to a new declared if d is nil, and returns the result.
// The declaration is a function if fn is not nil.
func with(d *declared, file string, fn *ast.FuncType) *declared {
	if d == nil {
		d = new(declared)
	}
	d.files = append(d.files, file)
	if fn == nil {
		d.other = true
		return d
	}
	s := signature{params: fn.Params.NumFields()}
	if list := fn.Params.List; len(list) > 0 {
		_, s.variadic = list[len(list)-1].Type.(*ast.Ellipsis)
	}
	d.funcs = append(d.funcs, s)
	return d
}

// typeName returns the name of the type of a receiver.
func typeName(of ast.Expr) string {
	switch of := of.(type) {
	case *ast.StarExpr:
		return typeName(of.X)
	case *ast.IndexExpr:
		return typeName(of.X)
	case *ast.IndexListExpr:
		return typeName(of.X)
	case *ast.Ident:
		return of.Name
	}
	return ""
}

// addUses adds the names of other modules that a file uses, such as http.Server and its field
// ReadTimeout. These names exist, because the file is compiled.
func (d *declarations) addUses(f source) {
	foreign := make(map[string]bool)
	for _, spec := range f.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil || strings.HasPrefix(imported, modulePath) {
			continue
		}
		name := packageName(imported)
		if spec.Name != nil {
			name = spec.Name.Name
		}
		foreign[name], d.packages[name] = true, true
	}
	use := func(pkg, name string) {
		d.names[name] = with(d.names[name], f.path, nil)
		d.packaged[pkg+"."+name] = with(d.packaged[pkg+"."+name], f.path, nil)
	}
	ofForeign := func(e ast.Expr) (pkg string, ok bool) {
		selector, isSelector := e.(*ast.SelectorExpr)
		if !isSelector {
			return "", false
		}
		ident, isIdent := selector.X.(*ast.Ident)
		if !isIdent || !foreign[ident.Name] {
			return "", false
		}
		use(ident.Name, selector.Sel.Name)
		return ident.Name, true
	}
	ast.Inspect(f.File, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			ofForeign(n)
		case *ast.CompositeLit:
			if pkg, ok := ofForeign(n.Type); ok {
				for _, element := range n.Elts {
					if pair, ok := element.(*ast.KeyValueExpr); ok {
						if field, ok := pair.Key.(*ast.Ident); ok {
							use(pkg, field.Name)
						}
					}
				}
			}
		}
		return true
	})
}

// packageName returns the usual name of a package of another module: the last element of its path,
// without a version at the end, and without "go-" at the beginning.
func packageName(imported string) string {
	dir, base := path.Split(imported)
	if regexp.MustCompile(`^v\d+$`).MatchString(base) {
		base = path.Base(dir)
	}
	return strings.TrimPrefix(base, "go-")
}

// literals returns the texts of all string literals of a file.
func literals(f source) (texts []string) {
	ast.Inspect(f.File, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			text, err := strconv.Unquote(lit.Value)
			if err == nil {
				texts = append(texts, text)
			}
		}
		return true
	})
	return texts
}

// flagsOf returns the literals of the Go files of a program, among which are the names of its flags.
func flagsOf(sources []source, program string) map[string]bool {
	program = filepath.ToSlash(filepath.Clean(program))
	found := make(map[string]bool)
	for _, f := range sources {
		if f.path == program || path.Dir(f.path) == program && !strings.HasSuffix(f.path, "_test.go") {
			for _, text := range literals(f) {
				found[text] = true
			}
		}
	}
	return found
}
