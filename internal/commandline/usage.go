// Package commandline is what the commands of all programs share: what is wrong usage and what would be right, and
// output for people, whose terminals it does not steer, or for programs.
package commandline

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Exit codes of the commands.
const (
	ExitFailure  = 1
	ExitUsage    = 2
	ExitNotFound = 4
)

type usageError struct{ err error }

func (u *usageError) Error() string { return u.err.Error() }
func (u *usageError) Unwrap() error { return u.err }

// Usage marks err as wrong usage.
func Usage(err error) error {
	if err == nil {
		return nil
	}
	return &usageError{err}
}

// Usagef is an error of wrong usage.
func Usagef(format string, a ...any) error { return Usage(fmt.Errorf(format, a...)) }

// IsUsage says whether err is one of wrong usage.
func IsUsage(err error) bool {
	_, is := errors.AsType[*usageError](err)
	return is
}

// MarkUsage makes what cobra finds wrong with arguments and flags of cmd and all below count as wrong usage, and tell
// what would be right.
func MarkUsage(cmd *cobra.Command) {
	if !cmd.HasParent() {
		// cobra adds these as it runs, and what is wrong with their arguments would be no wrong usage.
		cmd.InitDefaultHelpCmd()
		cmd.InitDefaultCompletionCmd()
	}
	markUsage(cmd)
}

func markUsage(cmd *cobra.Command) {
	if cmd.HasParent() && !cmd.Parent().HasParent() && cmd.Name() == "help" {
		cmd.Args = knownTopic
	}
	cmd.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return wrongUsage(c, flagError(c, err)) })
	check := cmd.Args
	if check == nil {
		check = cobra.ArbitraryArgs
	}
	if !cmd.Runnable() && cmd.HasSubCommands() {
		check = noCommand
		cmd.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	}
	cmd.Args = func(c *cobra.Command, args []string) error {
		err := check(c, args)
		if err != nil && len(args) > 0 && c.HasSubCommands() {
			err = noCommand(c, args) // it could be run without arguments, too, but a word is meant for a command
		} else if err != nil {
			err = argumentError(c, args, err)
		}
		// cobra looks at these after the arguments, and tells of them as of any failure.
		if err == nil {
			err = c.ValidateRequiredFlags()
		}
		if err == nil {
			err = c.ValidateFlagGroups()
		}
		if err != nil {
			return wrongUsage(c, err)
		}
		return nil
	}
	for _, sub := range cmd.Commands() {
		markUsage(sub)
	}
}

// knownTopic refuses to help about a command that is not there.
func knownTopic(help *cobra.Command, args []string) error {
	found, rest, err := help.Root().Find(args)
	if err == nil && found.HasSubCommands() {
		err = noCommand(found, rest)
	}
	if err != nil {
		return fmt.Errorf("there is no such help: %w", err)
	}
	return nil
}

func wrongUsage(c *cobra.Command, err error) error {
	usage := c.UseLine()
	if c.HasAvailableSubCommands() {
		var names []string
		for _, sub := range c.Commands() {
			if sub.IsAvailableCommand() {
				names = append(names, sub.Name())
			}
		}
		usage = c.CommandPath() + " COMMAND, one of " + strings.Join(names, ", ")
	}
	return Usagef("%w\nUsage: %s\nSee '%s --help' for more", err, usage, c.CommandPath())
}

// noCommand refuses arguments of a command that only has others below it: what was meant is one that is not there.
func noCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return errors.New(fmt.Sprintf("unknown command %q for %q", args[0], cmd.CommandPath()) +
		didYouMean(nearest(cmd, args[0]), ""))
}

// argumentError says which arguments are missing or too many, where cobra only counts them.
func argumentError(c *cobra.Command, args []string, err error) error {
	switch text := err.Error(); {
	case len(args) > 0 && !c.HasSubCommands() && strings.HasPrefix(text, "unknown command"): // of cobra.NoArgs
		return fmt.Errorf("it takes no arguments, and got %q", args[0])
	case !strings.Contains(text, "arg(s)"):
		return err
	}
	needed := neededArgs(c.Use)
	switch missing := needed[min(len(args), len(needed)):]; len(missing) {
	case 0:
		return fmt.Errorf("%q is one argument too many", args[len(args)-1])
	case 1:
		return fmt.Errorf("%s is missing", missing[0])
	default:
		return fmt.Errorf("%s are missing", strings.Join(missing, " and "))
	}
}

// neededArgs are the arguments in a line of usage that cannot be left out.
func neededArgs(use string) (needed []string) {
	for _, word := range strings.Fields(use)[1:] {
		name := strings.TrimSuffix(word, "...")
		switch {
		case strings.HasPrefix(strings.TrimPrefix(name, "["), "-"):
			return needed // flags, and what follows --
		case !strings.HasPrefix(name, "[") || !strings.HasSuffix(name, "]"):
			needed = append(needed, name)
		}
	}
	return needed
}

// near is how many letters a word may be away from the one that was meant, which is cobra's own default.
const near = 2

func nearest(cmd *cobra.Command, word string) []string {
	if cmd.SuggestionsMinimumDistance <= 0 {
		cmd.SuggestionsMinimumDistance = near
	}
	return cmd.SuggestionsFor(word)
}

// flagError adds to an unknown flag the one that was likely meant. cobra knows nearness of commands alone, so the flags
// are made some.
func flagError(c *cobra.Command, err error) error {
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok || unknown.GetSpecifiedShortnames() != "" {
		return err
	}
	words := &cobra.Command{}
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden && f.Deprecated == "" {
			words.AddCommand(&cobra.Command{Use: f.Name, Run: func(*cobra.Command, []string) {}})
		}
	})
	return fmt.Errorf("%w%s", err, didYouMean(nearest(words, unknown.GetSpecifiedName()), "--"))
}

func didYouMean(words []string, before string) string {
	if len(words) == 0 {
		return ""
	}
	return ", did you mean " + before + strings.Join(words, " or "+before) + "?"
}
