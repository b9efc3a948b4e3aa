package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/berth-node/berth/agent/cli"
	"github.com/berth-node/berth/agent/config"
	"github.com/berth-node/berth/install"
)

// cliDoc is the document that the commands make of themselves.
const cliDoc = "docs/cli.md"

// TestCLIDocs holds docs/cli.md to the commands there are. With BERTH_UPDATE_DOCS=1 it writes it.
func TestCLIDocs(t *testing.T) {
	t.Setenv(config.RunDirEnv, "") // whose value would be a default
	root := command()
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	var b strings.Builder
	b.WriteString("# Commands\n\nMade of what the commands say of themselves: `go test . -run TestCLIDocs` with `BERTH_UPDATE_DOCS=1` writes it anew. " +
		"Pages\nof the manual (`man berth-run`) and completions for bash, zsh and fish are made of the same, and installed with berth.\n\n")
	for line := range strings.Lines(cli.ExitHelp) {
		b.WriteString(line)
	}
	b.WriteString("\n")
	for _, group := range root.Groups() {
		fmt.Fprintf(&b, "\n%s\n\n", group.Title)
		for _, c := range root.Commands() {
			if c.GroupID == group.ID && !c.Hidden && c.Name() != "help" {
				fmt.Fprintf(&b, "- [berth %s](#%s): %s\n", c.Name(), anchor(c), c.Short)
			}
		}
	}
	fmt.Fprintf(&b, "\nFlags of every command:\n\n```\n%s```\n", trimmed(root.PersistentFlags().FlagUsagesWrapped(118)))
	for _, c := range root.Commands() {
		section(&b, c)
	}
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

func anchor(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

// section writes what a command says, and then those below it.
func section(b *strings.Builder, c *cobra.Command) {
	if c.Hidden || c.Name() == "help" {
		return
	}
	c.InitDefaultHelpFlag()
	says := c.Long
	if says == "" {
		says = c.Short + "."
	}
	fmt.Fprintf(b, "\n## %s\n\n```\n%s\n```\n\n%s\n", c.CommandPath(), c.UseLine(), strings.TrimSpace(says))
	if len(c.Aliases) > 0 {
		fmt.Fprintf(b, "\nAlso: %s.\n", strings.Join(c.Aliases, ", "))
	}
	if c.Example != "" {
		fmt.Fprintf(b, "\n```\n%s\n```\n", strings.ReplaceAll(strings.TrimPrefix(c.Example, "  "), "\n  ", "\n"))
	}
	if c.HasAvailableLocalFlags() {
		fmt.Fprintf(b, "\n```\n%s```\n", trimmed(c.LocalNonPersistentFlags().FlagUsagesWrapped(118)))
	}
	for _, sub := range c.Commands() {
		section(b, sub)
	}
}

// trimmed has no spaces at the ends of lines.
func trimmed(s string) string {
	var b strings.Builder
	for line := range strings.Lines(s) {
		b.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	return b.String()
}

// TestManualAndCompletions: what an installation and the packages bring is made of the commands, all of them, and the
// shells ask the program itself.
func TestManualAndCompletions(t *testing.T) {
	d, err := install.Describe(command())
	if err != nil {
		t.Fatal(err)
	}
	pages := map[string]string{}
	for _, p := range d.Man {
		pages[p.Name] = string(p.Data)
	}
	var every func(c *cobra.Command)
	every = func(c *cobra.Command) {
		if c.Hidden || c.Name() == "help" {
			return
		}
		if page := pages[anchor(c)+".1"]; !strings.Contains(page, "SYNOPSIS") {
			t.Errorf("no page of the manual for %s", c.CommandPath())
		}
		for _, sub := range c.Commands() {
			every(sub)
		}
	}
	every(command())
	if page := pages["berth-run.1"]; !strings.Contains(page, "--replace") {
		t.Errorf("the page of berth run has not its flags:\n%s", page)
	}
	for _, shell := range [][]byte{d.Bash[0].Data, d.Zsh[0].Data, d.Fish[0].Data} {
		if !strings.Contains(string(shell), "__complete") {
			t.Errorf("completions do not ask the program:\n%.200s", shell)
		}
	}
	for asked, want := range map[string]string{"ini": "init\t", "ru": "run\t", "run img --restart O": "OnFailure\n", "init --vol": "--volume\t"} {
		root := command()
		var out strings.Builder
		root.SetOut(&out)
		root.SetErr(&out)
		root.SetArgs(append([]string{"__complete"}, strings.Fields(asked)...))
		if err := root.ExecuteContext(t.Context()); err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("berth %s is completed to %q, %v", asked, out.String(), err)
		}
	}
}
