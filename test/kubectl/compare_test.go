// Package kubectl has kubectl do the same with berth-control and with Kubernetes' own API server, and compares what the
// two answer: each command's output, its errors and its exit code.
package kubectl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// commandLimit bounds one command, and startLimit the start of a server.
const (
	commandLimit = 3 * time.Minute
	startLimit   = 4 * time.Minute
)

// answer is what kubectl said and how it ended.
type answer struct {
	out, errs string
	code      int
}

func (a answer) String() string { return fmt.Sprintf("exit code %d\n%s%s", a.code, a.out, a.errs) }

// client is kubectl with one of the servers.
type client struct{ program, config string }

// run does a command in the namespace that the script has for itself.
func (c client) run(t *testing.T, command string) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), commandLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.program, strings.Fields(command)...)
	cmd.Dir = "testdata"
	cmd.Env = []string{"KUBECONFIG=" + c.config, "HOME=" + t.TempDir(), "PATH=" + os.Getenv("PATH")}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if ended := (*exec.ExitError)(nil); err != nil && !errors.As(err, &ended) {
		t.Fatalf("run kubectl %s: %v", command, err)
	}
	return answer{plain(out.String()), plain(errs.String()), cmd.ProcessState.ExitCode()}
}

// changing is what differs from one run to the next with the same server, too.
var changing = []struct {
	find *regexp.Regexp
	put  string
}{
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "UID"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`), "TIME"},
	{regexp.MustCompile(`(Mon|Tue|Wed|Thu|Fri|Sat|Sun), \d\d \w{3} \d{4} [0-9:]+ [+-]\d{4}`), "TIME"},
	{regexp.MustCompile(`("?resourceVersion"?: ?)"\d+"`), `${1}"VERSION"`},
	{regexp.MustCompile(`(Resource Version: +)\d+`), "${1}VERSION"},
	{regexp.MustCompile(`[EWI]\d{4} [0-9:.]+ +\d+ `), "LOG "},
	{regexp.MustCompile(`\b10\.96\.\d+\.\d+`), "ADDRESS"},
	{regexp.MustCompile(`(nodePort: |NodePort: +\S+ +|:)3[0-2]\d{3}\b`), "${1}PORT"},
	{regexp.MustCompile(`("serverAddress":)"[^"]*"`), `${1}"SERVER"`},
	{regexp.MustCompile(`https?://127\.0\.0\.1:\d+`), "SERVER"},
	{regexp.MustCompile(`127\.0\.0\.1:\d+`), "SERVER"},
	{regexp.MustCompile(`\b(\d+[dhms])+\b`), "AGE"},
	{regexp.MustCompile(`<(invalid|unknown)>`), "AGE"},
	{regexp.MustCompile(`[ \t]+`), " "}, // a table's columns are as wide as what they have
}

func plain(s string) string {
	for _, c := range changing {
		s = c.find.ReplaceAllString(s, c.put)
	}
	return s
}

// script is what the file of commands has.
func script(t *testing.T) []string {
	t.Helper()
	data, err := os.ReadFile("testdata/script.txt")
	if err != nil {
		t.Fatal(err)
	}
	var commands []string
	for line := range strings.Lines(string(data)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			commands = append(commands, line)
		}
	}
	return commands
}

// TestKubectl goes through the script with both servers. A difference that is known, and why it is right, stands in
// testdata/known.txt: a command a line, then the reason.
func TestKubectl(t *testing.T) {
	program := os.Getenv("BERTH_KUBECTL")
	if program == "" {
		t.Skip("needs kubectl and Kubernetes' own API server: make kubectl-compare")
	}
	clients := []client{{program, ours(t)}, {program, theirs(t)}}
	known := known(t)
	same := 0
	commands := script(t)
	others := []string{""}
	for _, command := range commands {
		var answers []answer
		for _, c := range clients {
			answers = append(answers, c.run(t, command))
		}
		switch reason, expected := known[command]; {
		case answers[0] == answers[1]:
			same++
		case expected:
			others = append(others, fmt.Sprintf("- `kubectl %s`:\n  %s", command, reason))
		default:
			t.Errorf("kubectl %s\n%s", command, difference(answers[0].String(), answers[1].String()))
		}
	}
	others[0] = fmt.Sprintf("%d of %d commands have the same answer to the letter. The others:\n", same, len(commands))
	t.Log(others[0])
	page, differ := coverage(resources(t, clients[0].config), resources(t, clients[1].config), others)
	if !t.Failed() {
		checkPage(t, page)
	}
	t.Logf("differences of resources:\n%s", strings.Join(differ, "\n"))
}

func known(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	data, err := os.ReadFile("testdata/known.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if command, reason, ok := strings.Cut(strings.TrimSpace(line), " # "); ok {
			all[command] = reason
		}
	}
	return all
}

// difference shows the lines that only one of the two has.
func difference(ours, theirs string) string {
	var out strings.Builder
	for _, side := range []struct{ mark, has, other string }{{"-", theirs, ours}, {"+", ours, theirs}} {
		left := map[string]int{}
		for l := range strings.Lines(side.other) {
			left[strings.TrimSuffix(l, "\n")]++
		}
		for l := range strings.Lines(side.has) {
			l = strings.TrimSuffix(l, "\n")
			if left[l]--; left[l] < 0 && out.Len() < 4000 {
				fmt.Fprintf(&out, "  %s %s\n", side.mark, l)
			}
		}
	}
	if out.Len() == 0 {
		return "  the order of lines differs"
	}
	return out.String()
}

// begin starts a server's process, which ends with the test, and says so where it ends before.
func begin(t *testing.T, program string, args ...string) {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if data, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
			t.Logf("%s says at last:\n%s", filepath.Base(program), data[max(0, len(data)-2000):])
		}
		_ = log.Close()
	})
}
