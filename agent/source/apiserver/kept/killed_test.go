package kept

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// child is the environment variable with the directory of a process that is there to be killed.
const child = "BERTH_TEST_KEPT_CHILD"

// life is what becomes of the pods that are kept: each step is one write.
var life = []func(*Store){
	func(s *Store) { s.Save([]Pod{podNamed("a", secretOf("1"))}, nil) },
	func(s *Store) { s.Save([]Pod{podNamed("a", secretOf("1")), podNamed("b", settings())}, nil) },
	func(s *Store) { hand(s, "1") },
	func(s *Store) { s.Save([]Pod{podNamed("a", secretOf("2")), podNamed("b", settings())}, nil) },
	func(s *Store) { hand(s, "2") },
	func(s *Store) { // as when the file has too much that is no longer so: it is made anew
		s.log.head = nil
		s.Save([]Pod{podNamed("a", secretOf("3")), podNamed("b", settings()), podNamed("c")}, nil)
	},
	func(s *Store) { s.Save([]Pod{podNamed("b", settings())}, nil) },
	func(s *Store) { s.Save(nil, nil) },
	func(s *Store) { s.Save([]Pod{podNamed("d", secretOf("4"), settings())}, nil) },
}

func secretOf(text string) *corev1.Secret {
	s := secret("s", "")
	s.Data["k"] = []byte(text)
	return s
}

func settings() *corev1.ConfigMap {
	return &corev1.ConfigMap{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "m"},
		Data: map[string]string{"k": "v"},
	}
}

// hand has something be issued to a pod, without waiting for it to be kept.
func hand(s *Store, text string) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	s.Hand(ctx, "u-a", "token", []byte(text))
}

// told is all that a start has of what was kept.
func told(t *testing.T, dir string) string {
	t.Helper()
	s, log := open(t, Config{Dir: dir})
	if strings.Contains(log.String(), "level=ERROR") {
		t.Errorf("it is damaged: %s", log)
	}
	out := ""
	for _, p := range s.Load() {
		out += p.Pod.Name + "("
		for _, o := range p.Objects {
			switch o := o.(type) {
			case *corev1.Secret:
				out += "s=" + string(o.Data["k"]) + " "
			case *corev1.ConfigMap:
				out += "m=" + o.Data["k"] + " "
			}
		}
		out += ") "
	}
	token, _ := s.Handed("u-a", "token")
	return out + "token=" + string(token)
}

// TestChild is the process that [TestKilledAtEachCall] kills. What it says is kept.
func TestChild(t *testing.T) {
	dir := os.Getenv(child)
	if dir == "" {
		t.Skip("it is another test's")
	}
	runtime.LockOSThread() // the calls of a thread are counted
	s, _ := open(t, Config{Dir: dir})
	for _, step := range life {
		step(s)
		if !s.write() {
			t.Fatal("it was not written")
		}
		fmt.Println("kept")
	}
}

// TestKilledAtEachCall kills a process as it enters each call of the kernel by which pods are kept. What the next start
// has is what was said to be kept, or what was being kept then, and the file goes on from there.
func TestKilledAtEachCall(t *testing.T) {
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("needs strace: ", err)
	}
	dir := filepath.Join(t.TempDir(), "offline")
	states := []string{told(t, dir)}
	s, _ := open(t, Config{Dir: dir})
	for _, step := range life {
		step(s)
		if !s.write() {
			t.Fatal("it was not written")
		}
		states = append(states, told(t, dir))
	}
	if states[6] != "a(s=3 ) b(m=v ) c() token=2" || states[9] != "d(m=v s=4 ) token=" {
		t.Fatalf("kept are %q", states)
	}
	stride := 1
	if testing.Short() {
		stride = 3
	}
	for _, call := range []string{"openat", "write", "fsync", "fdatasync", "close", "mkdirat", "/^rename", "unlinkat"} {
		when := 1
		for killedAt(t, strace, call, when, states) && !t.Failed() {
			when += stride
			if when > 500 {
				t.Fatalf("%s: there is no end", call)
			}
		}
		t.Logf("%s: %d calls looked at", call, when-1)
	}
}

// killedAt says whether a process was killed at a call.
func killedAt(t *testing.T, strace, call string, when int, states []string) bool {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "a", "offline")
	cmd := exec.CommandContext(t.Context(), strace, "-f", "-qq", "-e", "signal=none", "-e", "trace="+call, "-o", "/dev/null",
		fmt.Sprintf("--inject=%s:signal=SIGKILL:when=%d", call, when), os.Args[0], "-test.run=^TestChild$")
	cmd.Env = append(os.Environ(), child+"="+dir)
	out, err := cmd.CombinedOutput()
	if exit := new(exec.ExitError); err != nil && (!errors.As(err, &exit) || strings.Contains(string(out), "FAIL")) {
		t.Fatalf("%s %d: %v: %s", call, when, err, out)
	}
	kept := strings.Count(string(out), "kept\n")
	now := told(t, dir)
	if now != states[kept] && (kept == len(life) || now != states[kept+1]) {
		t.Errorf("%s %d: after %d writes there is %q, and should be %q", call, when, kept, now, states[kept])
	}
	s, _ := open(t, Config{Dir: dir})
	write(s, podNamed("z", secretOf("5")))
	if again := told(t, dir); again != "z(s=5 ) token=" {
		t.Errorf("%s %d: after %q there is %q", call, when, now, again)
	}
	return err != nil
}
