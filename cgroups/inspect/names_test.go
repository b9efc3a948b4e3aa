package inspect

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/cgroups/kube"
)

const uid = "0b7a1d7e-5b0a-4a9f-9d2e-6f2a3c1d4e5f"

func TestPodOf(t *testing.T) {
	for group, want := range map[string]string{
		"pod" + uid: uid, "kubepods-burstable-pod0b7a1d7e_5b0a_4a9f_9d2e_6f2a3c1d4e5f.slice": uid,
		"pod": "", "burstable": "", ".slice": "", "kubepods.slice": "", "-pod.slice": "",
	} {
		if got, ok := podOf(group); got != want && ok || ok != (want != "") {
			t.Errorf("%s: %q, %t", group, got, ok)
		}
	}
}

// The pods' own processes are told from the containers by what the runtime keeps of them.
func TestSandboxNames(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "sandboxes/abc"), 0o700); err != nil {
		t.Fatal(err)
	}
	s := &Snapshot{Names: map[string]Identity{}, Groups: map[string]Group{"/kubepods/pod" + uid + "/abc": {}}}
	Live{RunDir: dir}.fromSandboxes(s)
	if got := s.Names[uid].Containers["abc"]; got != sandboxName {
		t.Errorf("got %q", got)
	}
}

// TestSilentAgent looks at groups beside an agent that is stopped: the kernel takes connections for it. What cannot be
// told without it is said, to programs too.
func TestSilentAgent(t *testing.T) {
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, "berth.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s := &Snapshot{Names: map[string]Identity{}, Groups: map[string]Group{"/kubepods/pod" + uid: {}}}
	live := Live{RunDir: dir, Patience: time.Millisecond}
	if err := live.specifications(t.Context(), s); err != nil || !s.silent {
		t.Errorf("%v, silent %t", err, s.silent)
	}
	if got := strings.Join(s.notTold(), " "); got != "orphan missing drift" {
		t.Errorf("not told: %q", got)
	}
	s.Runtimes = []string{"runtime"}
	if got := strings.Join(s.notTold(), " "); got != "missing drift" {
		t.Errorf("not told: %q", got)
	}
	s.PodsFrom = "agent"
	if got := s.notTold(); got != nil {
		t.Errorf("not told: %q", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	live.Patience = time.Hour
	if err := live.specifications(ctx, s); !errors.Is(err, context.Canceled) {
		t.Errorf("given up: %v", err)
	}
}

func TestLookupWithoutNode(t *testing.T) {
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-node1", UID: types.UID(uid)}}
	s := &Snapshot{
		Groups: map[string]Group{"/kubepods": {}, "/kubepods/pod" + uid: {}}, Machine: Machine{Root: "/", Node: "node1"}, Names: map[string]Identity{},
	}
	s.use([]corev1.Pod{pod}, "test")
	for _, name := range []string{"web", "web-node1", "default/web-node1", uid} {
		if n, err := s.nodes().lookup(name); err != nil || n.UID != uid {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := s.nodes().lookup("we"); !errors.Is(err, ErrNotFound) {
		t.Errorf("err = %v", err)
	}
}

func TestSite(t *testing.T) {
	dir := t.TempDir()
	if _, err := kube.LoadLayout(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("err = %v", err)
	}
	want := kube.Layout{Root: "/x", NodeName: "n", Options: kube.Options{PodPids: 7}}
	if err := want.Save(dir); err != nil {
		t.Fatal(err)
	}
	got, err := kube.LoadLayout(dir)
	if err != nil || got.Root != "/x" || got.Options.PodPids != 7 {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestPodsOfCostlyQuantitiesAreRefused(t *testing.T) {
	const pod = `{"kind":"Pod","spec":{"overhead":{"cpu":"1e-999999999"}}}`
	for _, text := range []string{pod, `{"kind":"PodList","items":[` + pod + `]}`, "kind: Pod\nspec: {overhead: {cpu: '1e-999999999'}}\n"} {
		if pods, err := parsePods([]byte(text)); err == nil || !strings.Contains(err.Error(), "spec.overhead[cpu]: Invalid value") {
			t.Errorf("%s: %v, %v", text, pods, err)
		}
	}
}
