package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/berth-node/berth"

// mayImport says what of this module the packages below a folder may import, beside each other. What is not here has no
// say.
var mayImport = map[string][]string{
	"cgroups": {"internal/monitor", "internal/quantity"},
	"cni":     {"internal/atomicfile", "internal/excerpt", "internal/monitor"},
	"csi": {
		"internal/atomicfile", "internal/command", "internal/disk", "internal/filetree", "internal/keylock", "internal/loop",
		"internal/mount", "internal/openat", "internal/ownership", "internal/patience", "internal/quantity", "internal/quota",
		"internal/redo", "internal/sealed", "internal/socket",
	},
	"probes":   {},
	"eviction": {"cgroups/charge", "internal/patience", "internal/quantity", "internal/turns"},
	"systemd":  {},
	"install":  {"internal/atomicfile", "internal/command", "systemd"},
	"internal": {}, // what both agent and cri stand on, and nobody outside can import
	"cri": {
		"cgroups", "cni", "internal/atomicfile", "internal/commandline", "internal/disk", "internal/excerpt", "internal/filetree", "internal/keylock",
		"internal/monitor", "internal/openat", "internal/patience", "internal/quantity", "internal/socket", "internal/spread", "internal/turns",
	},
	"agent": {
		"cgroups", "csi", "probes", "eviction", "systemd", "control/api", "internal/aliases", "internal/atomicfile", "internal/command",
		"internal/commandline", "internal/encoded",
		"internal/disk", "internal/excerpt", "internal/filetree", "internal/monitor", "internal/mount", "internal/openat",
		"internal/ownership", "internal/patience", "internal/quantity", "internal/quota", "internal/resident", "internal/socket", "internal/spread",
		"internal/turns",
	},
	"control": {
		"cgroups", "install", "internal/atomicfile", "internal/commandline", "internal/disk", "internal/encoded", "internal/garbage",
		"internal/quantity", "internal/resident", "internal/socket", "systemd",
	},
	"examples": {},
	"test":     nil, // tests and benchmarks look at everything
}

type pkg struct {
	ImportPath, Dir, Name                        string
	Imports, TestImports, XTestImports           []string
	GoFiles, CgoFiles, TestGoFiles, XTestGoFiles []string
}

// list asks for packages with the C that some have in them, which tests are compiled without.
func list(t *testing.T, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list", "-tags", "seccomp"}, args...)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list %s: %v", strings.Join(args, " "), err)
	}
	return out
}

func packages(t *testing.T) []pkg {
	t.Helper()
	out := list(t, "-json", "./...")
	var pkgs []pkg
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
}

// TestImportTable holds the packages to who may know whom: the shape of the house is what the imports make it.
func TestImportTable(t *testing.T) {
	for _, p := range packages(t) {
		rel := strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
		if rel == "" {
			continue // main knows everybody
		}
		folder, _, _ := strings.Cut(rel, "/")
		allowed, known := mayImport[folder]
		if !known {
			t.Errorf("%s: the house has no folder %s", rel, folder)
			continue
		}
		for _, imp := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
			if imp == module {
				t.Errorf("%s imports main", rel)
			}
			to, ours := strings.CutPrefix(imp, module+"/")
			if !ours || folder == "test" || within(to, folder) || slices.ContainsFunc(allowed, func(a string) bool { return within(to, a) }) {
				continue
			}
			t.Errorf("%s imports %s, which %s may not", rel, to, folder)
		}
	}
}

// mayNotLink says what of other modules the packages below a folder, and "." the folder's own, do without, in what they
// import too: who knows no pods needs no types of pods.
var mayNotLink = map[string][]string{
	"cgroups/.":       {"k8s.io"},
	"cgroups/systemd": {"k8s.io"},
	"cri":             {"k8s.io/api", "k8s.io/component-helpers", "k8s.io/client-go"},
	"cri/helper":      {"k8s.io"},
}

// TestLinks holds packages to what they link.
func TestLinks(t *testing.T) {
	for folder, forbidden := range mayNotLink {
		pattern := "./" + folder + "/..."
		if own, ok := strings.CutSuffix(folder, "/."); ok {
			pattern = "./" + own
		}
		for dep := range strings.FieldsSeq(string(list(t, "-deps", pattern))) {
			if slices.ContainsFunc(forbidden, func(f string) bool { return within(dep, f) }) {
				t.Errorf("%s links %s", folder, dep)
			}
		}
	}
}

// TestPure keeps files, the network and waiting out of packages that only decide.
func TestPure(t *testing.T) {
	// They decide from what they are given.
	pure := []string{"agent/pod/plan", "agent/pod/admission", "eviction/collect", "eviction/rank", "eviction/threshold"}
	for _, p := range packages(t) {
		i := slices.Index(pure, strings.TrimPrefix(p.ImportPath, module+"/"))
		if i < 0 {
			continue
		}
		pure = slices.Delete(pure, i, i+1)
		for _, imp := range p.Imports {
			if slices.Contains([]string{"context", "io", "log/slog", "net", "net/http", "os", "os/exec", "sync", "golang.org/x/sys/unix"}, imp) {
				t.Errorf("%s imports %s", p.ImportPath, imp)
			}
		}
	}
	if len(pure) > 0 {
		t.Errorf("no package is %s", pure)
	}
}

// tableFile has the table of packages.
const tableFile = "docs/architecture.md"

// packageTable reads what packages import of ours by the documentation.
func packageTable(t *testing.T) map[string][]string {
	t.Helper()
	doc, err := os.ReadFile(tableFile)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(doc), "\n| package | owns | imports of ours |\n|---|---|---|\n")
	table, _, _ := strings.Cut(rest, "\n\n")
	if !found {
		t.Fatalf("%s has no table of packages", tableFile)
	}
	rows := map[string][]string{}
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		name := strings.Trim(cells[0], " `")
		if _, twice := rows[name]; len(cells) != 3 || strings.TrimSpace(cells[1]) == "" || twice {
			t.Fatalf("%s: not one row of three cells for %s: %s", tableFile, name, line)
		}
		rows[name] = nil
		if imports := strings.TrimSpace(cells[2]); imports != "nothing" {
			for one := range strings.SplitSeq(imports, ",") {
				rows[name] = append(rows[name], strings.Trim(one, " `"))
			}
		}
	}
	delete(rows, "main.go")
	return rows
}

// TestPackageTable holds the table of packages to what they import, one by one: a map that is wrong is worse than none.
func TestPackageTable(t *testing.T) {
	rows := packageTable(t)
	for _, p := range packages(t) {
		rel, inside := strings.CutPrefix(p.ImportPath, module+"/")
		if !inside || within(rel, "test") || within(rel, "examples") {
			continue
		}
		var imports []string
		for _, imp := range p.Imports {
			if to, ours := strings.CutPrefix(imp, module+"/"); ours {
				imports = append(imports, to)
			}
		}
		if strings.HasSuffix(rel, "test") {
			above := path.Dir(rel)
			if slices.ContainsFunc(imports, func(i string) bool { return i != above && !within(i, above+"/internal") }) {
				t.Errorf("%s is for tests, and imports %v", rel, imports)
			}
			continue
		}
		row, ok := rows[rel]
		delete(rows, rel)
		if why := differs(row, imports); !ok || why != "" {
			t.Errorf("%s: the row of %s should be | `%s` | ... | %s |%s", tableFile, rel, rel, cell(imports), why)
		}
	}
	for rel := range rows {
		t.Errorf("%s has a row for %s, which is no package", tableFile, rel)
	}
}

// differs says what of a row is not what a package imports.
func differs(row, imports []string) string {
	says := func(entry, imp string) bool {
		folder, below := strings.CutSuffix(entry, "/...")
		return entry == imp || below && strings.HasPrefix(imp, folder+"/")
	}
	for _, imp := range imports {
		if !slices.ContainsFunc(row, func(entry string) bool { return says(entry, imp) }) {
			return ": it does not say " + imp
		}
	}
	for _, entry := range row {
		if !slices.ContainsFunc(imports, func(imp string) bool { return says(entry, imp) }) {
			return ": it says " + entry
		}
	}
	return ""
}

// cell is how a row has imports.
func cell(imports []string) string {
	if len(imports) == 0 {
		return "nothing"
	}
	return "`" + strings.Join(imports, "`, `") + "`"
}

func within(pkg, folder string) bool { return pkg == folder || strings.HasPrefix(pkg, folder+"/") }

// TestPackages wants a comment in each package that says what it is for, a name that says so too, and no work at
// import.
func TestPackages(t *testing.T) {
	// Of the one init is all there is to it; the other has to come before a library's, which takes the same place.
	atImport := []string{"internal/early", "control/apiserver/queues"}
	for _, p := range packages(t) {
		rel := strings.TrimPrefix(p.ImportPath, module+"/")
		if slices.Contains([]string{"util", "utils", "common", "helpers", "interfaces", "misc"}, path.Base(rel)) {
			t.Errorf("%s: the name says nothing", rel)
		}
		documented := false
		files := slices.Concat(p.GoFiles, p.CgoFiles)
		if len(files) == 0 {
			files = slices.Concat(p.TestGoFiles, p.XTestGoFiles)
		}
		for _, name := range files {
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			documented = documented || f.Doc != nil
			for _, d := range f.Decls {
				if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" && !slices.Contains(atImport, rel) {
					t.Errorf("%s/%s: init runs for everybody who imports it", rel, name)
				}
			}
		}
		if !documented {
			t.Errorf("%s: no package comment", rel)
		}
	}
}

// TestFilesOfMain: each file of the command takes from those below it only, so that one can be read before the others.
func TestFilesOfMain(t *testing.T) {
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	declared, wants := map[string]string{}, map[string][]string{}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for ident := range f.Scope.Objects {
			declared[ident] = name
		}
		for _, ident := range f.Unresolved {
			wants[name] = append(wants[name], ident.Name)
		}
	}
	const visiting, done = 1, 2
	state := map[string]int{}
	var visit func(name string, way []string)
	visit = func(name string, way []string) {
		way = append(way, name)
		switch state[name] {
		case done:
			return
		case visiting:
			t.Errorf("files take from each other in a circle: %s", strings.Join(way, " -> "))
			return
		}
		state[name] = visiting
		for _, ident := range wants[name] {
			if of, ok := declared[ident]; ok && of != name {
				visit(of, way)
			}
		}
		state[name] = done
	}
	for name := range wants {
		visit(name, nil)
	}
	if wants["main.go"] == nil || declared["runAgent"] == "" {
		t.Errorf("the files of the command are not found: %v", names)
	}
}

// TestNolint: a directive names linters that run. Of any other nobody would say when it is of no use.
func TestNolint(t *testing.T) {
	config, err := os.ReadFile(".golangci.yml")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(config), "\n  enable:\n")
	list, _, _ := strings.Cut(rest, "\n  settings:")
	running := strings.Fields(strings.ReplaceAll(list, "- ", ""))
	if !slices.Contains(running, "nolintlint") {
		t.Fatalf("the linters are not found: %v", running)
	}
	for _, p := range packages(t) {
		for _, name := range slices.Concat(p.GoFiles, p.CgoFiles, p.TestGoFiles, p.XTestGoFiles) {
			fset := token.NewFileSet()
			f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for _, group := range f.Comments {
				for _, c := range group.List {
					names, is := strings.CutPrefix(c.Text, "//nolint:")
					names, _, _ = strings.Cut(names, " ")
					for name := range strings.SplitSeq(names, ",") {
						if is && !slices.Contains(running, name) {
							t.Errorf("%s: %s does not run", fset.Position(c.Pos()), name)
						}
					}
				}
			}
		}
	}
}

// What a type may have: beyond, it is several things in one, and nobody can say what holds of it at any time.
const (
	maxMethods = 25
	maxFields  = 20
)

// size is how many methods and fields a type has, and which types of its package it has the methods of.
type size struct {
	methods, fields int
	parts           []string
}

// larger are the types that have more, how many methods and fields they may have (0: as all others), and why.
var larger = map[string]struct {
	methods, fields int
	why             string
}{
	"agent/config.Embedded":   {0, 21, "settings"},
	"agent/config.Server":     {0, 25, "settings"},
	"agent/status.Input":      {0, 21, "what the one function that makes a status is given"},
	"cgroups/inspect.Figures": {0, 28, "JSON of a command, in which each field is a figure"},
	"cri/container.Record":    {0, 25, "JSON on the disk, which versions before this one read too"},
}

// maxJoint is how many methods of its own a type of composed may have.
const maxJoint = 6

// composed are the types that have more methods than any may have with those of their parts, and why one type has to
// have them all. Such a type does nothing: who knows it takes one of its parts where that is enough.
var composed = map[string]string{
	"agent/config.Config":     "all settings, which are checked together; who has to do with some takes those",
	"agent/config.Loaded":     "all settings, with where they are from",
	"agent/intercept.runtime": "a pod.Runtime",
	"agent/pod.Runtime":       "what a runtime has to be; who calls it takes Sandboxes, Containers and the like",
	"cri.Server":              "a service of gRPC is one type",
	"cri/nri.editor":          "the library of NRI plugins takes all edits from one type",
	"cri/remote.Runtime":      "a pod.Runtime",
}

// TestSizes keeps types small. Of those that are larger none may grow, and none is excepted that need not be.
func TestSizes(t *testing.T) {
	sizes := sizesOfTypes(t)
	for name, has := range sizes {
		may, excepted := larger[name]
		if most := max(maxMethods, may.methods); has.methods > most {
			t.Errorf("%s has %d methods, and may have %d: part what has a state of its own", name, has.methods, most)
		}
		if most := max(maxFields, may.fields); has.fields > most {
			t.Errorf("%s has %d fields, and may have %d: part what of it changes together", name, has.fields, most)
		}
		if excepted && (may.methods > 0 && has.methods <= maxMethods || may.fields > 0 && has.fields <= maxFields) {
			t.Errorf("%s has %d methods and %d fields: it needs no exception any more", name, has.methods, has.fields)
		}
	}
	for name, has := range sizes {
		all, why := methodsOf(sizes, name), composed[name]
		switch {
		case all > maxMethods && why == "" && larger[name].methods == 0 && has.methods <= maxMethods:
			t.Errorf("%s has %d methods with those of its parts, and may have %d: nothing says why they are one type's", name, all, maxMethods)
		case all > maxMethods && why != "" && has.methods > maxJoint:
			t.Errorf("%s has %d methods beside those of its parts, and may have %d: they are those of one more part", name, has.methods, maxJoint)
		case all <= maxMethods && why != "":
			t.Errorf("%s has %d methods with those of its parts: it needs no exception any more", name, all)
		}
	}
	for name := range composed {
		if _, there := sizes[name]; !there {
			t.Errorf("no type is %s, which is excepted", name)
		}
	}
	for name, may := range larger {
		if _, there := sizes[name]; !there {
			t.Errorf("no type is %s, which is excepted", name)
		}
		if may.why == "" {
			t.Errorf("%s is excepted, and nothing says why", name)
		}
	}
}

// sizesOfTypes counts the methods and fields of all types of the product, by folder and name.
func sizesOfTypes(t *testing.T) map[string]size {
	t.Helper()
	sizes := map[string]size{}
	for _, p := range packages(t) {
		rel := strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
		if within(rel, "test") || within(rel, "examples") || strings.HasSuffix(rel, "test") {
			continue
		}
		for _, name := range slices.Concat(p.GoFiles, p.CgoFiles) {
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range f.Decls {
				countSizes(sizes, cmp.Or(rel, "main"), d)
			}
		}
	}
	return sizes
}

// methodsOf is how many methods a type has with those of its parts.
func methodsOf(sizes map[string]size, name string) int {
	n := sizes[name].methods
	for _, part := range sizes[name].parts {
		n += methodsOf(sizes, part)
	}
	return n
}

// countSizes adds what a declaration says of types.
func countSizes(sizes map[string]size, pkg string, d ast.Decl) {
	add := func(name string, s size) {
		had := sizes[pkg+"."+name]
		sizes[pkg+"."+name] = size{had.methods + s.methods, had.fields + s.fields, append(had.parts, s.parts...)}
	}
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv != nil {
			add(receiver(d.Recv.List[0].Type), size{methods: 1})
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			s, ok := spec.(*ast.TypeSpec)
			if !ok {
				continue
			}
			switch u := s.Type.(type) {
			case *ast.StructType:
				add(s.Name.Name, size{fields: u.Fields.NumFields(), parts: partsOf(pkg, u.Fields)})
			case *ast.InterfaceType:
				parts := partsOf(pkg, u.Methods)
				own := u.Methods.NumFields() - len(parts)
				add(s.Name.Name, size{methods: own, parts: parts})
			default:
				add(s.Name.Name, size{})
			}
		}
	}
}

// partsOf are the types of the package itself that are embedded. One of another package is counted there.
func partsOf(pkg string, fields *ast.FieldList) []string {
	var parts []string
	for _, f := range fields.List {
		if name := receiver(f.Type); len(f.Names) == 0 && name != "" {
			parts = append(parts, pkg+"."+name)
		}
	}
	return parts
}

// receiver is the name of a method's type.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.ParenExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}
