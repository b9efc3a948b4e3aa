package install

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// Describe is what the commands say of themselves: the manual, and completions.
func Describe(root *cobra.Command) (Documents, error) {
	var d Documents
	name := root.Name()
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	if err := manual(root, &d.Man); err != nil {
		return d, fmt.Errorf("make the manual: %w", err)
	}
	var bash, zsh, fish bytes.Buffer
	err := errors.Join(root.GenBashCompletionV2(&bash, true), root.GenZshCompletion(&zsh), root.GenFishCompletion(&fish, true))
	if err != nil {
		return d, fmt.Errorf("make completions: %w", err)
	}
	d.Bash = []Document{{Name: name, Data: bash.Bytes()}}
	d.Zsh = []Document{{Name: "_" + name, Data: zsh.Bytes()}}
	d.Fish = []Document{{Name: name + ".fish", Data: fish.Bytes()}}
	return d, nil
}

// manual makes a page for each command that is no secret.
func manual(cmd *cobra.Command, out *[]Document) error {
	if cmd.Hidden || cmd.Name() == "help" {
		return nil
	}
	var page bytes.Buffer
	cmd.DisableAutoGenTag = true
	name := strings.ReplaceAll(cmd.CommandPath(), " ", "-")
	// The date is that of the first version of the form: pages of one version are the same, whenever they are made.
	date := time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)
	header := &doc.GenManHeader{Title: strings.ToUpper(name), Section: "1", Source: "berth " + cmd.Root().Version, Manual: "berth", Date: &date}
	if err := doc.GenMan(cmd, header, &page); err != nil {
		return err
	}
	*out = append(*out, Document{Name: name + ".1", Data: page.Bytes()})
	for _, c := range cmd.Commands() {
		if err := manual(c, out); err != nil {
			return err
		}
	}
	return nil
}
