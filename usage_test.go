package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/berth-node/berth/agent/cli"
	"github.com/berth-node/berth/agent/config"
)

// each calls fn with every command that is shown.
func each(c *cobra.Command, fn func(c *cobra.Command, path []string)) {
	if c.Hidden || c.Name() == "help" || c.Name() == "completion" {
		return
	}
	fn(c, strings.Fields(c.CommandPath())[1:])
	for _, sub := range c.Commands() {
		each(sub, fn)
	}
}

// TestWrongUsage has every command called with a flag that none has, and with a form of output that none knows: each
// says so by the exit code, and none begins to do anything. Who prints JSON prints YAML too.
func TestWrongUsage(t *testing.T) {
	t.Setenv(config.RunDirEnv, t.TempDir()) // where no agent is
	each(command(), func(c *cobra.Command, path []string) {
		if code := run(append(slices.Clone(path), "--no-flag-of-any")); code != cli.ExitUsage {
			t.Errorf("berth %s --no-flag-of-any: exit code %d", strings.Join(path, " "), code)
		}
		if c.HasSubCommands() {
			if code := run(append(slices.Clone(path), "no-command-of-any")); code != cli.ExitUsage {
				t.Errorf("berth %s no-command-of-any: exit code %d", strings.Join(path, " "), code)
			}
		}
		f := c.Flags().Lookup("output")
		if f == nil || !strings.Contains(f.Usage, "json") || !c.Runnable() {
			return
		}
		if !strings.Contains(f.Usage, "yaml") {
			t.Errorf("berth %s has -o json, and not yaml: %s", strings.Join(path, " "), f.Usage)
		}
		args := append(slices.Clone(path), "-o", "xml")
		if strings.Contains(c.Use, "POD") || strings.Contains(c.Use, "PID") {
			args = append(args, "x")
		}
		if code := run(args); code != cli.ExitUsage {
			t.Errorf("berth %s: exit code %d", strings.Join(args, " "), code)
		}
	})
	for _, args := range []string{"unit nothing", "unit agent runtime", "unit slice -- --x", "unit --as-kubelet agent", "runtime --listen=", "upgrade", "init", "run"} {
		if code := run(strings.Fields(args)); code != cli.ExitUsage {
			t.Errorf("berth %s: exit code %d", args, code)
		}
	}
}
