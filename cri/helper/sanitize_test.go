package main

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// The C here is root code that reads foreign bytes, so it has no warnings, and its parsers are run by sanitizers.

// strict are warnings that are errors in this test only: another compiler may know others.
var strict = []string{
	"-std=gnu11", "-Wall", "-Wextra", "-Wno-missing-field-initializers", "-Werror", "-Wshadow", "-Wvla", "-Wformat=2",
	"-Wno-format-nonliteral", "-Wpointer-arith", "-Wcast-align", "-Wstrict-prototypes", "-Wmissing-prototypes",
	"-Wconversion", "-Wno-sign-conversion",
}

var sanitizers = []string{
	"-g", "-O1", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all",
}

func cc(args ...string) error {
	compiler := cmp.Or(os.Getenv("CC"), "gcc")
	if out, err := exec.Command(compiler, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", compiler, strings.Join(args, " "), err, out)
	}
	return nil
}

// sources are the C files of the helper.
func sources(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.c"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no C in %s: %v", dir, err)
	}
	return files
}

func TestNoWarnings(t *testing.T) {
	for _, src := range append(sources(t, "."), sources(t, "fuzz")...) {
		t.Run(src, func(t *testing.T) {
			t.Parallel()
			// With optimization the compiler sees more.
			if err := cc(slices.Concat(strict,
				[]string{"-O2", "-c", src, "-o", filepath.Join(t.TempDir(), "o")})...); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestParsers runs the fuzz targets over their seeds and some changes of each. A fuzzer does it for longer: make fuzz.
func TestParsers(t *testing.T) {
	dir := t.TempDir()
	probe := filepath.Join(dir, "probe.c")
	if err := os.WriteFile(probe, []byte("int main(void) { return 0; }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := cc(append(slices.Clone(sanitizers), probe, "-o", filepath.Join(dir, "probe"))...); err != nil {
		t.Skipf("needs a compiler with sanitizers: %v", err)
	}
	object := func(src string) string { return filepath.Join(dir, strings.ReplaceAll(src, "/", "-")+".o") }
	var wg sync.WaitGroup
	all := append(sources(t, "."), sources(t, "fuzz")...)
	for _, src := range all {
		wg.Go(func() {
			if err := cc(slices.Concat(strict, sanitizers, []string{"-c", src, "-o", object(src)})...); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	for _, target := range []struct{ name, changes, instead string }{
		{"wire", "300", ""},
		{"log", "50", ""},
		{"program", "2000", "program.c"},
		{"plain_parse", "2000", "plain_parse.c"},
		{"runtime", "500", "runtime.c"},
	} {
		t.Run(target.name, func(t *testing.T) {
			bin := filepath.Join(dir, target.name)
			args := append(slices.Clone(sanitizers), "-o", bin, object("fuzz/main.c"), object("fuzz/"+target.name+".c"))
			for _, src := range sources(t, ".") {
				// The target includes the one, and the other stands in for a function of a library at a link that
				// is not this one.
				if src != target.instead && src != "monitor.c" {
					args = append(args, object(src))
				}
			}
			if err := cc(args...); err != nil {
				t.Fatal(err)
			}
			seeds, err := filepath.Glob("fuzz/corpus/" + target.name + "/*")
			if err != nil || len(seeds) == 0 {
				t.Fatalf("no seeds: %v", err)
			}
			cmd := exec.Command(bin, append([]string{target.changes}, seeds...)...)
			cmd.Env = append(os.Environ(), "UBSAN_OPTIONS=print_stacktrace=1")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
