package inspect

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/berth-node/berth/cgroups"
)

// The JSON of every command says its schema, has lists where there is nothing, null for no limit, and YAML is the same.
func TestOutputsForMachines(t *testing.T) {
	for what, paths := range map[string][]string{
		"tree":          {"groups.0.figures.workingSetBytes", "groups.0.figures.memoryLimitBytes", "groups.0.children.0.children.0.figures.cpuLimitCores"},
		"show web":      {"values.0.file", "tightestLimits"},
		"explain web":   {"groups.0.figures.throttledNs", "oomOrder.0.rank", "evictionOrder.workingSetBytes", "killed", "before", "tightest.0.value"},
		"check":         {"problems.0.kind"},
		"find kubepods": {"path"},
	} {
		args := append(strings.Fields(what), "--from", "testdata/v1-hybrid.json.gz", "-o")
		text, err := execute(t, append(args, "json")...)
		if err != nil && !errors.Is(err, ErrProblems) {
			t.Fatal(err)
		}
		other, err := execute(t, append(args, "yaml")...)
		if err != nil && !errors.Is(err, ErrProblems) {
			t.Fatal(err)
		}
		var a, b any
		if err := errors.Join(json.Unmarshal([]byte(text), &a), yaml.Unmarshal([]byte(other), &b)); err != nil || fmt.Sprint(a) != fmt.Sprint(b) {
			t.Errorf("%s: %v\n%v\n%v", what, err, a, b)
		}
		for _, p := range append(paths, "schemaVersion") {
			if _, ok := dig(a, strings.Split(p, ".")); !ok {
				t.Errorf("%s has no %s:\n%s", what, p, text)
			}
		}
		if what != "show web" && strings.Contains(text, "9223372036854771712") || what != "show web" && strings.Contains(text, "18446744073709551615") {
			// The command show has what is in the files.
			t.Errorf("%s has a number for no limit", what)
		}
		eachNull(a, "", func(p string) {
			if !strings.HasSuffix(p, "LimitBytes") && !strings.HasSuffix(p, "LimitCores") && !strings.HasSuffix(p, "LimitCount") && !strings.HasSuffix(p, "availableBytes") && !strings.HasSuffix(p, "Percent") {
				t.Errorf("%s: %s is null", what, p)
			}
		})
	}
}

func dig(v any, path []string) (any, bool) {
	for _, p := range path {
		switch x := v.(type) {
		case map[string]any:
			next, ok := x[p]
			if !ok {
				return nil, false
			}
			v = next
		case []any:
			var i int
			if _, err := fmt.Sscan(p, &i); err != nil || i >= len(x) {
				return nil, false
			}
			v = x[i]
		default:
			return nil, false
		}
	}
	return v, true
}

func eachNull(v any, at string, fn func(string)) {
	switch x := v.(type) {
	case nil:
		fn(at)
	case map[string]any:
		for k, e := range x {
			eachNull(e, at+"."+k, fn)
		}
	case []any:
		for i, e := range x {
			eachNull(e, fmt.Sprintf("%s.%d", at, i), fn)
		}
	}
}

func TestErrorsAreOfAKind(t *testing.T) {
	for what, want := range map[string]error{
		"show nobody": ErrNotFound, "explain nobody": ErrNotFound, "find nobody": ErrNotFound, "show web/none": ErrNotFound,
		"tree -o xml": ErrUsage, "tree -p none": ErrUsage, "tree --columns none": ErrUsage, "top": ErrUsage, "watch": ErrUsage, "check -o xml": ErrUsage,
	} {
		_, err := execute(t, append(strings.Fields(what), "--from", "testdata/v1-hybrid.json.gz")...)
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	if _, err := execute(t, "top", "--sort", "x"); !errors.Is(err, ErrUsage) {
		t.Errorf("top --sort x: %v", err)
	}
}

// A pod of many processes is explained on a screen.
func TestExplainManyProcesses(t *testing.T) {
	s := &Snapshot{
		Version: snapshotVersion, Machine: Machine{Mode: cgroups.Unified, Root: "/"}, Processes: map[int]Process{},
		Groups: map[string]Group{"/kubepods": {}, "/kubepods/pod" + uid: {}},
	}
	var g Group
	for pid := 1; pid < 100; pid++ {
		g.Pids = append(g.Pids, pid)
		s.Processes[pid] = Process{Comm: "x", OOMScore: pid}
	}
	s.Groups["/kubepods/pod"+uid+"/c"] = g
	file := filepath.Join(t.TempDir(), "capture.json")
	if err := s.Save(file); err != nil {
		t.Fatal(err)
	}
	out, err := execute(t, "explain", uid, "--from", file)
	if err != nil || strings.Count(out, "\n") > 24 || !strings.Contains(out, "process 99 (x)") || !strings.Contains(out, "91 processes more of the pod, down to number 99") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := execute(t, "explain", uid, "--from", file, "-o", "json"); err != nil || strings.Count(out, `"pid"`) != 99 {
		t.Errorf("%v\n%s", err, out)
	}
}
