package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

// What subjects of commits are held to, and from which commit on: who reads `git log --oneline` in 80 columns sees them
// whole, beside the hash.
const (
	subjectChars  = 72
	subjectsAfter = "49f078dc9bcbed691d0b93a82da682decc4ff14e"
)

// TestSubjects holds the subjects of commits to their length.
func TestSubjects(t *testing.T) {
	git := func(args ...string) (string, bool) {
		cmd := exec.CommandContext(t.Context(), "git", args...)
		cmd.Env = append(os.Environ(), "LC_ALL=C")
		out, err := cmd.CombinedOutput()
		return strings.TrimSpace(string(out)), err == nil
	}
	top, ok := git("rev-parse", "--show-toplevel")
	if !ok {
		t.Skipf("there is no history of commits: %s", top)
	}
	here, err := filepath.Abs(".")
	if err == nil {
		here, err = filepath.EvalSymlinks(here)
	}
	if err != nil {
		t.Fatal(err)
	}
	if top != here {
		t.Skipf("the history is that of another tree: %s", top)
	}
	if said, ok := git("merge-base", "--is-ancestor", subjectsAfter, "HEAD"); !ok {
		t.Skipf("the history does not go back to %.7s: %s", subjectsAfter, said)
	}
	log, ok := git("log", "--no-merges", "--format=%h %s", subjectsAfter+"..HEAD")
	if !ok {
		t.Fatal(log)
	}
	for _, s := range longSubjects(log) {
		t.Errorf("the subject is longer than %d characters: %s", subjectChars, s)
	}
}

// longSubjects are the lines of a log, a hash and a subject each, whose subject is too long.
func longSubjects(log string) (long []string) {
	for line := range strings.Lines(log) {
		line = strings.TrimSuffix(line, "\n")
		if _, subject, _ := strings.Cut(line, " "); utf8.RuneCountInString(subject) > subjectChars {
			long = append(long, line)
		}
	}
	return long
}

func TestSubjectsSees(t *testing.T) {
	fits, long := "1234567 cri: "+strings.Repeat("é", subjectChars-5), "89abcde cri: "+strings.Repeat("x", subjectChars-4)
	if got := longSubjects(fits + "\n" + long + "\n\nfedcba9\n"); len(got) != 1 || got[0] != long {
		t.Errorf("too long are %q, want %q", got, long)
	}
}
