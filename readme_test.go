package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-node/berth/agent/config"
)

// TestCommandsOfDocuments looks up every command line that the documents show: the command is there, and so are its
// flags.
func TestCommandsOfDocuments(t *testing.T) {
	files, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, name := range append(files, "README.md") {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			rest, ok := strings.CutPrefix(line, "    berth ")
			if !ok {
				continue
			}
			for _, end := range []string{"#", "|", ">", "&&", ";"} {
				rest, _, _ = strings.Cut(rest, end)
			}
			seen++
			root := command()
			cmd, args, err := root.Find(strings.Fields(rest))
			if err != nil || cmd == root {
				t.Errorf("%s: berth %s: no such command (%v)", name, rest, err)
				continue
			}
			if err := cmd.ParseFlags(args); err != nil && !strings.Contains(err.Error(), "help requested") {
				t.Errorf("%s: berth %s: %v", name, rest, err)
			}
		}
	}
	if seen < 20 {
		t.Errorf("%d command lines were found", seen)
	}
}

// TestInstall compares what the README has people do with what the agent then looks for.
func TestInstall(t *testing.T) {
	read := func(name string) string {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	readme := read("README.md")
	for _, want := range []string{
		"mkdir -p " + config.Default().ManifestDir + "\n", "berth unit > /etc/systemd/system/", "berth completion bash",
		"berth images import bin/example/hello.tar", "cp examples/hello/pod.yaml " + config.Default().ManifestDir + "/",
	} {
		if !strings.Contains(readme, want) {
			t.Errorf("the README has no %q", want)
		}
	}
	_, image, _ := strings.Cut(read("examples/hello/pod.yaml"), "image: ")
	image, _, _ = strings.Cut(image, "\n")
	if !strings.Contains(read("examples/hello/image"), "-name "+image+" ") || !strings.Contains(read("Makefile"), "bin/example/hello.tar:") {
		t.Errorf("the image %q of the example is not the one that is made", image)
	}
}
