package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// layers are the headers of the C, each of which includes only those before it: what is on the wire, what everybody
// asks of the kernel, the keeper's loop and state, what it does when it is asked, and how others are started.
var layers = []string{
	"proto.h", "wire.h", "sanitizer.h", "null.h", "link.h", "sys.h", "home.h", "loop.h", "log.h", "state.h", "sandbox.h",
	"podinit.h",
	"run.h", "hush.h", "streams.h", "exit.h", "exec.h", "keeper.h", "kin.h", "groups.h", "entry.h", "program.h",
	"terminal.h", "launch.h",
	"plain.h", "runtime.h",
}

var (
	included = regexp.MustCompile(`(?m)^#include "(.+)"$`)
	comment  = regexp.MustCompile(`(?s)/\*.*?\*/`)
	role     = regexp.MustCompile(`^/\*\s+(\* )?\S`)
	declared = []*regexp.Regexp{
		regexp.MustCompile(`(?m)^#define (\w+)`),
		regexp.MustCompile(`(?m)^(?:\w[\w *]*[ *])(\w+)\([^;{]*[;{]`), // a function
		regexp.MustCompile(`(?m)^extern [^;]*?(\w+);`),
		regexp.MustCompile(`\b((?:struct|enum) \w+)\s*\{`),
	}
	enumerated = regexp.MustCompile(`(?s)enum\s*\w*\s*\{(.*?)\}`)
	constant   = regexp.MustCompile(`(?:^|,)\s*(\w+)`)
)

// names are what a header declares.
func names(text string) []string {
	var all []string
	for _, d := range declared {
		for _, m := range d.FindAllStringSubmatch(text, -1) {
			if !strings.HasPrefix(m[1], "BERTH_") {
				all = append(all, m[1])
			}
		}
	}
	for _, e := range enumerated.FindAllStringSubmatch(text, -1) {
		for _, m := range constant.FindAllStringSubmatch(e[1], -1) {
			all = append(all, m[1])
		}
	}
	return all
}

// TestHeaders: a file sees what it uses, and no more.
func TestHeaders(t *testing.T) {
	read := func(name string) string {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !role.Match(b) {
			t.Errorf("%s does not begin with what it is for", name)
		}
		return string(b)
	}
	found, err := filepath.Glob("*.h")
	if err != nil {
		t.Fatal(err)
	}
	declares := map[string]*regexp.Regexp{}
	for _, h := range found {
		at := slices.Index(layers, h)
		if at < 0 {
			t.Errorf("%s is in no layer", h)
		}
		text := read(h)
		for _, m := range included.FindAllStringSubmatch(text, -1) {
			if below := slices.Index(layers, m[1]); below < 0 || below >= at {
				t.Errorf("%s includes %s, which is not below it", h, m[1])
			}
		}
		all := names(comment.ReplaceAllString(text, " "))
		if len(all) == 0 {
			t.Fatalf("%s declares nothing", h)
		}
		declares[h] = regexp.MustCompile(`\b(?:` + strings.Join(all, "|") + `)\b`)
	}
	for _, f := range append(sources(t, "."), found...) {
		text := read(f)
		body := comment.ReplaceAllString(included.ReplaceAllString(text, ""), " ")
		sees := included.FindAllStringSubmatch(text, -1)
		for h, declares := range declares {
			used := declares.MatchString(body)
			if has := slices.ContainsFunc(sees, func(m []string) bool { return m[1] == h }); has && !used {
				t.Errorf("%s includes %s and uses nothing of it", f, h)
			} else if used && !has && strings.HasSuffix(f, ".c") {
				t.Errorf("%s uses what is in %s and does not include it", f, h)
			}
		}
	}
}

// TestLines holds what the documentation says of the size of the C to what it is.
func TestLines(t *testing.T) {
	headers, err := filepath.Glob("*.h")
	if err != nil {
		t.Fatal(err)
	}
	lines := 0
	for _, f := range append(sources(t, "."), headers...) {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		lines += bytes.Count(b, []byte("\n"))
	}
	doc, err := os.ReadFile("../../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`some\s([0-9,]+)\slines\sof\sC`).FindSubmatch(doc)
	if m == nil {
		t.Fatal("docs/architecture.md does not say how many lines of C there are")
	}
	says, err := strconv.Atoi(strings.ReplaceAll(string(m[1]), ",", ""))
	if err != nil || lines < says*95/100 || lines > says*105/100 {
		t.Errorf("docs/architecture.md says %s lines of C, there are %d: %v", m[1], lines, err)
	}
}
