package main

import (
	"bytes"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// maxColumns is how wide a line of a comment or of a document may be, a tab as four: two files fit beside each other.
const maxColumns = 120

// made are documents that a test makes of what commands say, in whose lines they have it.
var made = []string{"docs/cli.md", "docs/footprint.md", "docs/pod-fields.md"}

func columns(line string) int {
	return utf8.RuneCountInString(strings.ReplaceAll(line, "\t", "    "))
}

// TestColumns keeps comments and the prose of documents within [maxColumns]. In C the code is held to it as well.
func TestColumns(t *testing.T) {
	wide := map[string]func(text []byte) []int{".go": wideComments, ".c": wideLines, ".h": wideLines, ".md": wideProse}
	seen := map[string]int{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (path == "bin" || path != "." && strings.HasPrefix(d.Name(), ".")):
			return fs.SkipDir // what was built, and what is not ours
		case !d.Type().IsRegular() || wide[filepath.Ext(path)] == nil || slices.Contains(made, filepath.ToSlash(path)):
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		seen[filepath.Ext(path)]++
		for _, line := range wide[filepath.Ext(path)](text) {
			t.Errorf("%s:%d: wider than %d columns", path, line, maxColumns)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for ext := range wide {
		if seen[ext] == 0 {
			t.Errorf("no file is *%s", ext)
		}
	}
}

// wideLines are the numbers of the lines that are too wide.
func wideLines(text []byte) []int {
	var wide []int
	for n, line := range bytes.Split(text, []byte("\n")) {
		if columns(string(line)) > maxColumns {
			wide = append(wide, n+1)
		}
	}
	return wide
}

// wideComments are the lines on which a comment of a Go file goes too far. What tools read is no comment: it has to be
// on the line that it is about.
func wideComments(text []byte) []int {
	fset := token.NewFileSet()
	file := fset.AddFile("", -1, len(text))
	var scan scanner.Scanner
	scan.Init(file, text, nil, scanner.ScanComments)
	tooWide := map[int]bool{}
	for _, line := range wideLines(text) {
		tooWide[line] = true
	}
	var wide []int
	for {
		pos, tok, lit := scan.Scan()
		if tok == token.EOF {
			return wide
		}
		if tok != token.COMMENT || directive.MatchString(lit) {
			continue
		}
		for n := range strings.Count(lit, "\n") + 1 {
			if line := file.Line(pos) + n; tooWide[line] {
				wide = append(wide, line)
			}
		}
	}
}

// directive is a comment for a tool, by https://go.dev/doc/comment#syntax.
var directive = regexp.MustCompile(`^//([a-z0-9]+:[a-z0-9]|line |export )`)

var (
	fence  = regexp.MustCompile("^ *```")
	linked = regexp.MustCompile(`\]\([^)]*\)`)
)

// wideProse are the lines of a document that are too wide, but for blocks of code, rows of tables and where links go.
func wideProse(text []byte) []int {
	code := false
	var wide []int
	for n, line := range strings.Split(string(text), "\n") {
		if fence.MatchString(line) {
			code = !code
		}
		if code || strings.HasPrefix(line, "    ") || strings.HasPrefix(strings.TrimSpace(line), "|") {
			continue
		}
		if columns(linked.ReplaceAllString(line, "]()")) > maxColumns {
			wide = append(wide, n+1)
		}
	}
	return wide
}

// TestColumnsSees tries what TestColumns looks for, so that it does not pass by seeing nothing.
func TestColumnsSees(t *testing.T) {
	long := strings.Repeat("word ", maxColumns/5) + "x"
	for name, c := range map[string]struct {
		wide func([]byte) []int
		text string
		is   bool
	}{
		"a comment":             {wideComments, "package x\n// " + long, true},
		"behind code":           {wideComments, "package x\nvar a = 1 // " + long, true},
		"in the midst":          {wideComments, "package x\n/*\n" + long + "\n*/", true},
		"behind tabs":           {wideComments, "package x\nfunc f() {\n\t\t\t\t// " + long[:104] + "\n}", true},
		"narrow":                {wideComments, "package x\n// " + long[:117], false},
		"characters, not bytes": {wideComments, "package x\n// " + strings.Repeat("─", 117), false},
		"a directive":           {wideComments, "package x\nvar a = 1 //nolint:errorlint // " + long, false},
		"wide code":             {wideComments, "package x\nvar a = `// " + long + "`", false},
		"C":                     {wideLines, "int x; /* " + long + " */", true},
		"prose":                 {wideProse, long, true},
		"a list":                {wideProse, "- " + long, true},
		"a table":               {wideProse, "| " + long + " |", false},
		"a block":               {wideProse, "```\n" + long + "\n```", false},
		"an indented block":     {wideProse, "    " + long, false},
		"after a block":         {wideProse, "```\n```\n" + long, true},
		"a link":                {wideProse, "[here](https://example.org/" + strings.Repeat("x", maxColumns) + ")", false},
	} {
		if got := len(c.wide([]byte(c.text))) > 0; got != c.is {
			t.Errorf("%s: too wide is %v", name, got)
		}
	}
}
