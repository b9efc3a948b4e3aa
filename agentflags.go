package main

import (
	"fmt"

	"github.com/spf13/pflag"

	"github.com/berth-node/berth/agent/config"
)

// agentConfig is what an agent has that is started with these flags.
func agentConfig(runDir string, args []string) (config.Config, error) {
	flags := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	d, s := config.Default(), &config.Sources{RunDir: runDir, Given: flags}
	s.AddFlags(flags)
	d.AddFlags(flags)
	flags.StringVar(&s.RunDir, "run-dir", s.RunDir, "") // which the root command has
	if err := flags.Parse(args); err != nil {
		return config.Config{}, fmt.Errorf("read the agent's flags: %w", err)
	}
	loaded, err := s.Load()
	if err != nil {
		return config.Config{}, err
	}
	return loaded.Config, nil
}
