//go:build !packaging

package main

import "github.com/spf13/cobra"

// tools are commands of who makes packages, which are in no program that is packaged.
func tools() []*cobra.Command { return nil }
