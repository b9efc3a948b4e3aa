package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestSecurityDocument finds every test that docs/security.md names, and a test for each of its claims.
func TestSecurityDocument(t *testing.T) {
	text, err := os.ReadFile("docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "\n| claim | shown by |\n|---|---|\n")
	table, _, _ := strings.Cut(rest, "\n\n")
	if !found {
		t.Fatal("docs/security.md has no table of claims")
	}
	named := regexp.MustCompile("`([a-z0-9/]+)\\.(Test[A-Za-z0-9]+)`")
	claims := 0
	for line := range strings.Lines(table) {
		claims++
		tests := named.FindAllStringSubmatch(line, -1)
		if len(tests) == 0 || strings.Count(line, "`Test") > 0 {
			t.Errorf("no test, by package and name, shows: %s", line)
		}
		for _, one := range tests {
			if !hasTest(t, one[1], one[2]) {
				t.Errorf("%s has no test %s, which is to show: %s", one[1], one[2], line)
			}
		}
	}
	if claims < 15 {
		t.Errorf("%d claims were found", claims)
	}
}

// hasTest says whether a package has a test of that name.
func hasTest(t *testing.T, pkg, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(pkg, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "\nfunc "+name+"(t *testing.T)") {
			return true
		}
	}
	return false
}
