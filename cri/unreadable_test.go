package cri

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/store"
)

// damage changes one row of the closed server's records, and what its pod has of its own. What is no JSON any more is
// kept as a text of it, which is no record either.
func (n *node) damage(t testing.TB, table, id string, change func([]byte) []byte) {
	t.Helper()
	db, err := store.Open(store.Config{Path: filepath.Join(n.cfg.RootDir, "runtime.db"), Beside: filepath.Join(n.cfg.RunDir, "records")})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	rows, err := store.NewTable[json.RawMessage](db, table)
	if err != nil {
		t.Fatal(err)
	}
	row, err := rows.Get(id)
	if err != nil {
		t.Fatal(err)
	}
	changed := change(bytes.Clone(row))
	if !json.Valid(changed) {
		if changed, err = json.Marshal(string(changed)); err != nil {
			t.Fatal(err)
		}
	}
	if err := rows.Put(id, changed); err != nil {
		t.Fatal(err)
	}
	own := filepath.Join(n.cfg.RunDir, "sandboxes", id, "record")
	if table == "containers" {
		found, err := filepath.Glob(filepath.Join(n.cfg.RunDir, "sandboxes", "*", "containers", id))
		if err != nil || len(found) != 1 {
			t.Fatalf("records of container %s: %v, %v", id, found, err)
		}
		own = found[0]
	}
	encoded, err := store.Encode(changed)
	if err != nil {
		t.Fatal(err)
	}
	if err := store.WriteFile(own, table, id, encoded); err != nil {
		t.Fatal(err)
	}
}

var damages = map[string]func([]byte) []byte{
	"empty":   func([]byte) []byte { return nil },
	"halved":  func(b []byte) []byte { return b[:len(b)/2] },
	"flipped": flip,
	"config": func(b []byte) []byte {
		return []byte(strings.Replace(string(b), `"Config":"`, `"Config":"////`, 1))
	},
	"another": func(b []byte) []byte { return []byte(strings.Replace(string(b), `"Name":"`, `"Name":"x`, 1)) },
}

// TestUnreadableSandbox damages the record of one pod. It goes on as it was, is told of and not replaced, the other pod
// is left alone; it goes by its ID, by its group, or with all.
func TestUnreadableSandbox(t *testing.T) {
	all := maps.Clone(damages)
	all["another group"] = func(b []byte) []byte {
		return regexp.MustCompile(`"Cgroup":"[^"]*"`).ReplaceAll(b, []byte(`"Cgroup":"/berth-nowhere"`))
	}
	for name, change := range all {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			pod, cfg := n.pod(t, "a", nil)
			first := n.initPid(t, n.run(t, pod, "main", nil, "sleep", "1000"))
			other, _ := n.pod(t, "b", nil)
			healthy := n.run(t, other, "main", nil, "sleep", "1000")
			second, k, group := n.initPid(t, healthy), n.keeperPid(t, pod), n.groupOf(t, pod)
			n.keeperPid(t, other)
			if err := n.Close(); err != nil {
				t.Fatal(err)
			}
			n.damage(t, "sandboxes", pod, change)
			n.open(t)
			if n.initPid(t, healthy) != second || n.sh(t, healthy, "echo ok") != "ok" {
				t.Error("the other pod is not what it was")
			}
			for _, pid := range []int{first, k} {
				if !lives(pid) {
					t.Errorf("process %d has ended", pid)
				}
			}
			st, err := n.Status(t.Context(), &runtimeapi.StatusRequest{Verbose: true})
			if err != nil || !strings.Contains(st.Info["info"], pod) {
				t.Errorf("status says %v, %v", st.GetInfo(), err)
			}
			if _, err := n.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: cfg}); err == nil || !strings.Contains(err.Error(), "cannot be read") {
				t.Errorf("a second one of the pod: %v", err)
			}
			switch name {
			case "empty": // as the end of the pod's group does
				if err := n.core.host.Cgroups.Remove(t.Context(), group); err != nil {
					t.Error(err)
				}
				eventually(t, func() bool { return !n.core.pods.Quarantine.Sandbox(pod) })
			case "halved": // the purge takes it
				return
			default:
				if err := removePod(t, n.Server, pod); err != nil {
					t.Error(err)
				}
			}
			again, _ := n.pod(t, "a", nil)
			if err := removePod(t, n.Server, again); err != nil {
				t.Error(err)
			}
			if err := removePod(t, n.Server, other); err != nil {
				t.Error(err)
			}
			n.checkClean2(t)
		})
	}
}

// TestUnreadableContainer damages the record of one container of a pod. It and its pod go on, and the pod gets no other
// one in its place until it has ended.
func TestUnreadableContainer(t *testing.T) {
	for name, change := range damages {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			pod, _ := n.pod(t, "a", nil)
			id := n.run(t, pod, "main", nil, "sleep", "1000")
			beside := n.run(t, pod, "beside", nil, "sleep", "1000")
			first, second := n.initPid(t, id), n.initPid(t, beside)
			n.keeperPid(t, pod)
			if err := n.Close(); err != nil {
				t.Fatal(err)
			}
			n.damage(t, "containers", id, change)
			n.open(t)
			if !lives(first) || n.initPid(t, beside) != second || n.sh(t, beside, "echo ok") != "ok" {
				t.Error("the pod is not what it was")
			}
			if got := n.problem(t, pod); !strings.Contains(got, id) {
				t.Errorf("problem is %q", got)
			}
			if _, err := n.tryCreate(pod, "main", nil, "true"); err == nil || !strings.Contains(err.Error(), "cannot be read") {
				t.Errorf("a second one: %v", err)
			}
			if name == "halved" { // it goes with its pod
				if err := removePod(t, n.Server, pod); err != nil {
					t.Error(err)
				}
				n.checkClean2(t)
				return
			}
			kill(t, first)
			eventually(t, func() bool { return n.problem(t, pod) == "" })
			n.run(t, pod, "main", nil, "sleep", "1000")
		})
	}
}

func lives(pid int) bool { return procState(pid) != "" && procState(pid) != "Z" }

// procState is the letter that the kernel has for the state of a process; "" when there is none.
func procState(pid int) string {
	b, err := os.ReadFile("/proc/" + itoa(pid) + "/stat")
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return rest[:1]
}
