package check

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func answering(a answer) func(context.Context, *env) answer {
	return func(context.Context, *env) answer { return a }
}

func TestReport(t *testing.T) {
	r := run(t.Context(), []probe{
		{"a", true, "cost of a", answering(ok("fine"))},
		{"b", true, "cost of b", answering(limited("half\nof it"))},
		{"c", false, "cost of c", answering(missing("nothing"))},
	}, &env{})
	if !r.OK() {
		t.Error("a limited or optional feature must not fail the machine")
	}
	r.Machine = "test"
	var b bytes.Buffer
	if err := r.Print(&b); err != nil {
		t.Fatal(err)
	}
	want := `CHECK   STATUS    REQUIRED   FOUND
a       ok        yes        fine
b       limited   yes        half of it
c       missing   no         nothing

b (limited): cost of b
c (missing): cost of c

This machine can run pods (test).
`
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
	r.Rows[0].Status = Missing
	if r.OK() || !strings.Contains(r.verdict(), "cannot run pods (test), it lacks: a.") {
		t.Errorf("verdict = %q", r.verdict())
	}
}

func TestJSON(t *testing.T) {
	r := run(t.Context(), []probe{{"a", true, "cost", answering(missing("x"))}}, &env{})
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var got Report
	if err := json.Unmarshal(b, &got); err != nil || got.Able || len(got.Rows) != 1 || got.Rows[0].Cost != "cost" {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestCancelledRunTriesNothing(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := run(ctx, []probe{{"a", true, "", func(context.Context, *env) answer { t.Error("tried"); return ok("") }}}, &env{})
	if r.OK() {
		t.Error("what was not tried is not there")
	}
}

func TestKernelVersion(t *testing.T) {
	for in, want := range map[string][2]int{
		"6.18.44-x": {6, 18}, "5.10.0": {5, 10}, "6.1-rc3": {6, 1}, "7.0+": {7, 0}, "x": {0, 0},
	} {
		major, minor := kernelVersion(in)
		if major != want[0] || minor != want[1] {
			t.Errorf("%s = %d.%d", in, major, minor)
		}
	}
}

func TestHasCap(t *testing.T) {
	status := "Name:\tx\nCapPrm:\tffffffff\nCapEff:\t0000000000000021\n"
	if !hasCap(status, 0) || !hasCap(status, 5) || hasCap(status, 1) || hasCap("", 0) {
		t.Error("wrong")
	}
}

// Every probe runs on this machine and leaves neither file, mount, group, child nor namespace.
func TestRunLeavesNothing(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes namespaces, mounts and groups")
	}
	dir := t.TempDir()
	r := Run(t.Context(), Config{RootDir: filepath.Join(dir, "not", "there")})
	// Whoever else is on the machine may mount meanwhile. All probes mount in a directory of that name.
	for line := range strings.Lines(read(t, "/proc/self/mountinfo")) {
		if strings.Contains(line, dir) || strings.Contains(line, "/.berth-check-") {
			t.Errorf("still mounted: %s", line)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("left in the root directory: %v, %v", entries, err)
	}
	for _, pattern := range []string{"/sys/fs/cgroup/*/berth-check-%d", "/sys/fs/cgroup/berth-check-%d", "/sys/class/net/berthcheck*%.0d"} {
		if left, _ := filepath.Glob(fmt.Sprintf(pattern, os.Getpid())); len(left) != 0 {
			t.Errorf("left: %v", left)
		}
	}
	if _, err := unix.Wait4(-1, nil, unix.WNOHANG|unix.WALL, nil); !errors.Is(err, unix.ECHILD) {
		t.Errorf("a child is left: %v", err)
	}
	var names []string
	for _, row := range r.Rows {
		t.Logf("%-26s %-8s %s", row.Name, row.Status, row.Found)
		if row.Status != OK && row.Cost == "" {
			t.Errorf("%s does not say what it costs", row.Name)
		}
		names = append(names, row.Name)
	}
	slices.Sort(names)
	if len(slices.Compact(names)) != len(r.Rows) {
		t.Error("two rows have one name")
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestCommand(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes namespaces, mounts and groups")
	}
	cmd := Command(t.TempDir, nil, nil, nil)
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs([]string{"-o", "json", "--root-dir", t.TempDir()})
	err := cmd.ExecuteContext(t.Context())
	var r Report
	if jerr := json.Unmarshal(out.Bytes(), &r); jerr != nil {
		t.Fatalf("%v: %s", jerr, out.String())
	}
	if r.Able != (err == nil) {
		t.Errorf("able = %t, err = %v", r.Able, err)
	}
	cmd.SetArgs([]string{"-o", "xml"})
	if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "must be table, json or yaml") {
		t.Errorf("an unknown output was taken: %v", err)
	}
}
