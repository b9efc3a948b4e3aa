package main

import (
	"cmp"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// What a file and a function may have of lines: beyond, a reader has more than one thing before him.
const (
	maxFileLines     = 400
	maxFunctionLines = 60
)

// longer are the functions that may have more lines, and why. None of them may grow much.
var longer = map[string]struct {
	lines int
	why   string
}{
	"control/api/rules.table":             {120, "a table: one row for each kind"},
	"control/apiserver/registry.coreRows": {70, "a table: one row for each resource"},
	"control/apiserver/registry.rows":     {115, "a table: one row for each resource"},
	"cri/image/inflate.Reader.symbols":    {130, "one loop whose state is in registers: a call in it costs a tenth of its speed"},
}

// undocumented are methods whose names and types say all: those of interfaces of the standard library.
var undocumented = []string{"Error", "String", "Unwrap", "ServeHTTP"}

// files parses each Go file but those of tests, and calls fn with it and its folder.
func files(t *testing.T, fn func(folder, path string, fset *token.FileSet, f *ast.File)) {
	t.Helper()
	seen := 0
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (path == "bin" || d.Name() == "testdata" || path != "." && strings.HasPrefix(d.Name(), ".")):
			return fs.SkipDir // what was built, and what is not ours
		case !d.Type().IsRegular() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		seen++
		fn(filepath.ToSlash(filepath.Dir(path)), filepath.ToSlash(path), fset, f)
		return nil
	})
	if err != nil || seen == 0 {
		t.Fatalf("%d files are seen, %v", seen, err)
	}
}

// ofTests says whether a folder is for tests alone.
func ofTests(folder string) bool { return within(folder, "test") || strings.HasSuffix(folder, "test") }

// TestLengths keeps files and functions short.
func TestLengths(t *testing.T) {
	needed := map[string]bool{}
	files(t, func(folder, path string, fset *token.FileSet, f *ast.File) {
		if lines := fset.File(f.Pos()).LineCount(); lines > maxFileLines {
			t.Errorf("%s has %d lines, and may have %d: part it by topic", path, lines, maxFileLines)
		}
		if ofTests(folder) {
			return
		}
		for _, d := range f.Decls {
			fn, is := d.(*ast.FuncDecl)
			if !is {
				continue
			}
			name := strings.TrimPrefix(folder+".", "..") + called(fn)
			lines := fset.Position(fn.End()).Line - fset.Position(fn.Pos()).Line + 1
			if most := max(maxFunctionLines, longer[name].lines); lines > most {
				t.Errorf("%s: %s has %d lines, and may have %d: part what is a thing of its own", path, name, lines, most)
			}
			needed[name] = lines > maxFunctionLines
		}
	})
	for name, may := range longer {
		if !needed[name] {
			t.Errorf("%s needs no exception any more", name)
		}
		if may.why == "" {
			t.Errorf("%s is excepted, and nothing says why", name)
		}
	}
}

// called is the name of a function, with its type before it.
func called(fn *ast.FuncDecl) string {
	if fn.Recv == nil {
		return fn.Name.Name
	}
	return receiver(fn.Recv.List[0].Type) + "." + fn.Name.Name
}

// TestDocumented wants a comment on each name that other packages see, but for those of tests.
func TestDocumented(t *testing.T) {
	files(t, func(folder, _ string, fset *token.FileSet, f *ast.File) {
		if within(folder, "test") || f.Name.Name == "main" {
			return
		}
		for _, d := range f.Decls {
			for _, name := range silent(d) {
				t.Errorf("%s: %s has no comment", fset.Position(d.Pos()), name)
			}
		}
	})
}

// silent are the names of a declaration that others see and of which nothing says what they are.
func silent(d ast.Decl) []string {
	var names []string
	switch d := d.(type) {
	case *ast.FuncDecl:
		private := d.Recv != nil && !ast.IsExported(receiver(d.Recv.List[0].Type))
		if d.Doc == nil && d.Name.IsExported() && !private && !(d.Recv != nil && slices.Contains(undocumented, d.Name.Name)) {
			names = append(names, called(d))
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch s := spec.(type) {
			case *ast.TypeSpec:
				if s.Name.IsExported() && cmp.Or(s.Doc, d.Doc) == nil {
					names = append(names, s.Name.Name)
				}
			case *ast.ValueSpec:
				for _, n := range s.Names {
					if n.IsExported() && cmp.Or(s.Doc, s.Comment, d.Doc) == nil {
						names = append(names, n.Name)
					}
				}
			}
		}
	}
	return names
}

// TestShapeSees tries what the tests of this file look for, so that they do not pass by seeing nothing.
func TestShapeSees(t *testing.T) {
	for text, want := range map[string][]string{
		"func F() {}":                        {"F"},
		"// F does.\nfunc F() {}":            nil,
		"func f() {}":                        nil,
		"func (t *T) M() {}":                 {"T.M"},
		"func (t *T[A, B]) M() {}":           {"T.M"},
		"func (T) Error() string":            nil,
		"func (t *hidden) M() {}":            nil,
		"type T struct{}":                    {"T"},
		"type (\n// T is.\nT int\nU int\n)":  {"U"},
		"const A = 1":                        {"A"},
		"const A = 1 // of B":                nil,
		"// Of B.\nconst (\nA = 1\nC = 2\n)": nil,
	} {
		f, err := parser.ParseFile(token.NewFileSet(), "x.go", "package x\n"+text, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		if got := silent(f.Decls[0]); !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", text, got, want)
		}
	}
}
