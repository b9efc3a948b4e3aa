package commandline

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

type inner struct {
	Names []string            `json:"names"`
	Sets  map[string][]string `json:"sets"`
	Limit *int64              `json:"limitBytes"`
	Gone  []string            `json:"gone,omitempty"`
	At    time.Time           `json:"at"`
}

type answer struct {
	All  []inner `json:"all"`
	One  *inner  `json:"one"`
	None []inner `json:"none"`
}

// command is one that prints an answer.
func command(v any) *cobra.Command {
	var o Output
	c := &cobra.Command{Use: "x", Args: cobra.NoArgs, RunE: func(c *cobra.Command, _ []string) error {
		return o.Print(c.OutOrStdout(), v, func(w io.Writer) error {
			_, err := fmt.Fprintln(w, "a table \x1b[2J")
			return err
		})
	}}
	o.AddFlag(c, "wide")
	root := &cobra.Command{Use: "berth", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(c)
	MarkUsage(root)
	return root
}

// TestOutput wants the version of the schema, [] for lists of nothing at any depth, null for what has no limit, the
// same in YAML, and no way to steer a terminal.
func TestOutput(t *testing.T) {
	evil := "x\x1b[2J\u009b2J\u202e"
	v := answer{All: []inner{{Names: []string{evil}, Sets: map[string][]string{"a": nil}}}, One: &inner{}}
	const want = `{"schemaVersion":1,"all":[{"names":["x\u001b[2J\u009b2J\u202e"],"sets":{"a":[]},"limitBytes":null,"at":"0001-01-01T00:00:00Z"}],` +
		`"one":{"names":[],"sets":{},"limitBytes":null,"at":"0001-01-01T00:00:00Z"},"none":[]}`
	for _, form := range []string{"json", "yaml", "wide", ""} {
		c := command(v)
		var out strings.Builder
		c.SetOut(&out)
		c.SetArgs([]string{"x", "-o" + form})
		if form == "" {
			c.SetArgs([]string{"x"})
		}
		if err := c.ExecuteContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		got := out.String()
		if strings.ContainsAny(got, "\x1b\u009b\u202e") {
			t.Errorf("-o %s: a terminal is steered by %q", form, got)
		}
		switch form {
		case "json":
			var compact, wanted any
			if json.Unmarshal([]byte(got), &compact) != nil || json.Unmarshal([]byte(want), &wanted) != nil || fmt.Sprint(compact) != fmt.Sprint(wanted) {
				t.Errorf("got %s", got)
			}
			if !strings.HasPrefix(got, "{\n    \"schemaVersion\": 1,\n") {
				t.Errorf("got %s", got)
			}
		case "yaml":
			var back map[string]any
			if err := yaml.Unmarshal([]byte(got), &back); err != nil || fmt.Sprint(back["none"]) != "[]" || fmt.Sprint(back["schemaVersion"]) != "1" {
				t.Errorf("%v: %s", err, got)
			}
		default:
			if got != "a table ^[[2J\n" {
				t.Errorf("-o %q: %q", form, got)
			}
		}
	}
}

func TestOutputIsRefused(t *testing.T) {
	c := command(answer{})
	c.SetArgs([]string{"x", "-o", "xml"})
	if err := c.ExecuteContext(t.Context()); !IsUsage(err) || !strings.Contains(err.Error(), "must be wide, json or yaml") {
		t.Errorf("-o xml: %v", err)
	}
	c = command([]int{1})
	c.SetOut(io.Discard)
	c.SetArgs([]string{"x", "-o", "json"})
	if err := c.ExecuteContext(t.Context()); err == nil {
		t.Error("what is no object has no place for its version")
	}
}
