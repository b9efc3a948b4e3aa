package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// cliDoc is the document that the commands make of themselves.
const cliDoc = "../../docs/control-cli.md"

// TestDocs holds the document to the commands there are. With BERTH_UPDATE_DOCS=1 it writes it.
func TestDocs(t *testing.T) {
	var b strings.Builder
	b.WriteString("# Commands of the control plane\n\nMade of what the commands say of themselves: " +
		"`go test ./control/berth-control -run TestDocs` with\n`BERTH_UPDATE_DOCS=1` writes it anew. " +
		"Pages of the manual (`man berth-control-serve`) and completions for bash, zsh and\nfish are made of the same, and are in the package.\n")
	root := newCommand()
	root.InitDefaultHelpCmd()
	section(&b, root)
	if os.Getenv("BERTH_UPDATE_DOCS") != "" {
		if err := os.WriteFile(cliDoc, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	have, err := os.ReadFile(cliDoc)
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != b.String() {
		t.Errorf("%s is not what the commands say; run the test with BERTH_UPDATE_DOCS=1", cliDoc)
	}
}

// section writes what a command says, and then those below it.
func section(b *strings.Builder, c *cobra.Command) {
	if c.Hidden || c.Name() == "help" || c.Name() == "completion" {
		return
	}
	c.InitDefaultHelpFlag()
	says := c.Long
	if says == "" {
		says = c.Short + "."
	}
	fmt.Fprintf(b, "\n## %s\n\n```\n%s\n```\n\n%s\n", c.CommandPath(), c.UseLine(), strings.TrimSpace(says))
	if c.Example != "" {
		fmt.Fprintf(b, "\n```\n%s\n```\n", strings.ReplaceAll(strings.TrimPrefix(c.Example, "  "), "\n  ", "\n"))
	}
	flags := c.LocalFlags()
	if flags.HasAvailableFlags() {
		var out []string
		for line := range strings.Lines(flags.FlagUsagesWrapped(118)) {
			out = append(out, strings.TrimRight(line, " \n"))
		}
		fmt.Fprintf(b, "\n```\n%s\n```\n", strings.Join(out, "\n"))
	}
	for _, sub := range c.Commands() {
		section(b, sub)
	}
}
