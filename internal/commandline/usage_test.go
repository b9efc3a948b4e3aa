package commandline

import (
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestArguments wants it to be told which arguments are missing, and which are too many: "accepts 1 arg(s), received 0"
// is what cobra says.
func TestArguments(t *testing.T) {
	for line, want := range map[string]string{
		"none x":        `it takes no arguments, and got "x"`,
		"one":           "POD is missing",
		"one a b":       `"b" is one argument too many`,
		"optional":      "POD is missing",
		"optional pod":  "",
		"two":           "POD and TYPE=STATUS are missing",
		"two a":         "TYPE=STATUS is missing",
		"two a b c":     "",
		"ports a":       "[LOCAL:]REMOTE is missing",
		"flags":         "NAME is missing",
		"flags a b":     `"b" is one argument too many`,
		"any a b":       "",
		"group nonsene": `unknown command "nonsene" for "p group", did you mean nonsense?`,

		"help":              "",
		"help one":          "",
		"help group":        "",
		"help nonsense":     `there is no such help: unknown command "nonsense" for "p"`,
		"help group on":     `there is no such help: unknown command "on" for "p group"`,
		"completion dash":   `unknown command "dash" for "p completion", did you mean bash or fish or zsh?`,
		"completion bash x": `it takes no arguments, and got "x"`,
	} {
		root := &cobra.Command{Use: "p", SilenceErrors: true, SilenceUsage: true}
		run := func(*cobra.Command, []string) error { return nil }
		group := &cobra.Command{Use: "group"}
		group.AddCommand(&cobra.Command{Use: "nonsense", RunE: run})
		root.AddCommand(
			&cobra.Command{Use: "none", Args: cobra.NoArgs, RunE: run},
			&cobra.Command{Use: "one POD", Args: cobra.ExactArgs(1), RunE: run},
			&cobra.Command{Use: "optional [pod] POD", Args: cobra.RangeArgs(1, 2), RunE: run},
			&cobra.Command{Use: "two POD TYPE=STATUS... [TYPE-...]", Args: cobra.MinimumNArgs(2), RunE: run},
			&cobra.Command{Use: "ports POD [LOCAL:]REMOTE...", Args: cobra.MinimumNArgs(2), RunE: run},
			&cobra.Command{Use: "flags NAME --image IMAGE [-- ARG...]", Args: cobra.ExactArgs(1), RunE: run},
			&cobra.Command{Use: "any", RunE: run}, group,
		)
		MarkUsage(root)
		root.SetOut(io.Discard)
		root.SetArgs(strings.Fields(line))
		err := root.ExecuteContext(t.Context())
		got := ""
		if err != nil {
			got, _, _ = strings.Cut(err.Error(), "\n")
		}
		if got != want || err != nil && !IsUsage(err) {
			t.Errorf("%s: %v, want %q", line, err, want)
		}
	}
}
