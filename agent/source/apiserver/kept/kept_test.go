package kept

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/object"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const hidden = "correct horse battery staple"

func secret(name string, kind corev1.SecretType) *corev1.Secret {
	return &corev1.Secret{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}, ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Type: kind, Data: map[string][]byte{"k": []byte(hidden)},
	}
}

func podNamed(name string, objects ...object.Object) Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("u-" + name), ResourceVersion: "7"}}
	p.Status.Phase, p.Status.PodIP = corev1.PodRunning, "10.0.0.1"
	return Pod{p, objects}
}

func open(t testing.TB, cfg Config) (*Store, *bytes.Buffer) {
	t.Helper()
	var log bytes.Buffer
	cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	if cfg.Node == "" {
		cfg.Node = "node1"
	}
	s, err := Open(cfg)
	must(t, err)
	return s, &log
}

// write has what was saved be in the file.
func write(s *Store, pods ...Pod) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	s.Save(pods)
	s.Run(ctx)
}

func names(pods []Pod) string {
	var out []string
	for _, p := range pods {
		text := p.Pod.Name
		for _, o := range p.Objects {
			text += "/" + refOf(o).Name
		}
		out = append(out, text)
	}
	return strings.Join(out, " ")
}

func TestKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "offline")
	s, _ := open(t, Config{Dir: dir})
	if got := s.Load(); got != nil {
		t.Errorf("there is %v", got)
	}
	write(s, podNamed("a", secret("s", ""), secret("token", corev1.SecretTypeServiceAccountToken)), podNamed("b", secret("s", "")))
	data, err := os.ReadFile(filepath.Join(dir, podsFile))
	must(t, err)
	for _, text := range []string{hidden, "u-a", "default"} {
		if bytes.Contains(data, []byte(text)) {
			t.Errorf("the file has %q", text)
		}
	}
	for _, name := range []string{podsFile, keyFile} {
		if st, err := os.Stat(filepath.Join(dir, name)); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, st, err)
		}
	}
	s, _ = open(t, Config{Dir: dir})
	got := s.Load()
	if names(got) != "a/s b/s" || got[0].Pod.Status.PodIP != "" || got[0].Pod.UID != "u-a" {
		t.Fatalf("%s", names(got))
	}
	if o, ok := got[0].Objects[0].(*corev1.Secret); !ok || string(o.Data["k"]) != hidden || o.Kind != "Secret" {
		t.Errorf("%v", got[0].Objects)
	}
	// What says the same is not written again, and nothing is kept of no pods.
	st, err := os.Stat(filepath.Join(dir, podsFile))
	must(t, err)
	status := podNamed("a", secret("s", ""))
	status.Pod.Status.PodIP, status.Pod.ResourceVersion = "10.0.0.2", "8"
	write(s, podNamed("b", secret("s", "")), status)
	if again, err := os.Stat(filepath.Join(dir, podsFile)); err != nil || !os.SameFile(st, again) {
		t.Errorf("it was written again: %v", err)
	}
	write(s)
	if _, err := os.Stat(filepath.Join(dir, podsFile)); !os.IsNotExist(err) {
		t.Errorf("it is there still: %v", err)
	}
}

// TestDamage flips and cuts off every byte that there is.
func TestDamage(t *testing.T) {
	dir := t.TempDir()
	s, _ := open(t, Config{Dir: dir})
	write(s, podNamed("a", secret("s", "")))
	path := filepath.Join(dir, podsFile)
	good, err := os.ReadFile(path)
	must(t, err)
	try := func(what string, data []byte) {
		t.Helper()
		must(t, os.WriteFile(path, data, 0o600))
		s, log := open(t, Config{Dir: dir})
		if got := s.Load(); got != nil {
			t.Errorf("%s: %s", what, names(got))
		}
		if !strings.Contains(log.String(), "put aside") {
			t.Errorf("%s: nobody says so", what)
		}
		if _, err := os.Stat(path + ".bad"); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	for i := range good {
		flipped := bytes.Clone(good)
		flipped[i] ^= 1 << (i % 8)
		try(fmt.Sprintf("byte %d of %d flipped", i, len(good)), flipped)
		try(fmt.Sprintf("%d of %d bytes", i, len(good)), good[:i])
	}
	try("more", append(bytes.Clone(good), 0))
}

func TestOthers(t *testing.T) {
	dir, credentials := t.TempDir(), t.TempDir()
	s, _ := open(t, Config{Dir: dir})
	write(s, podNamed("a"))
	for _, c := range []struct {
		cfg Config
		why string
	}{
		{Config{Dir: dir, Node: "node2"}, `of node \"node1\"`},
		{Config{Dir: dir, Credentials: credentials}, "of another key"},
	} {
		if c.cfg.Credentials != "" {
			must(t, os.WriteFile(filepath.Join(credentials, Credential), []byte(hidden), 0o600))
			must(t, os.Rename(filepath.Join(dir, podsFile+".bad"), filepath.Join(dir, podsFile)))
		}
		s, log := open(t, c.cfg)
		if got := s.Load(); got != nil || !strings.Contains(log.String(), c.why) {
			t.Errorf("want %q: %s, %s", c.why, names(got), log)
		}
	}
	// With the credential, what it sealed is read again, whatever becomes of the file with a key.
	s, _ = open(t, Config{Dir: dir, Credentials: credentials})
	write(s, podNamed("b"))
	must(t, os.WriteFile(filepath.Join(dir, keyFile), []byte("short"), 0o644))
	s, _ = open(t, Config{Dir: dir, Credentials: credentials})
	if got := names(s.Load()); got != "b" {
		t.Errorf("%q", got)
	}
	// A key that is damaged is made anew, and said; a credential that is too short is an error.
	_, log := open(t, Config{Dir: dir})
	if key, err := os.ReadFile(filepath.Join(dir, keyFile)); err != nil || len(key) != keySize || !strings.Contains(log.String(), "damaged") {
		t.Errorf("%d bytes, %v, %s", len(key), err, log)
	}
	must(t, os.WriteFile(filepath.Join(credentials, Credential), []byte("1234"), 0o600))
	if _, err := Open(Config{Dir: dir, Credentials: credentials}); err == nil {
		t.Error("a short credential is taken")
	}
}

func TestBound(t *testing.T) {
	dir := t.TempDir()
	s, log := open(t, Config{Dir: dir, Max: 4 << 10})
	high := int32(10)
	big := secret("big", "")
	big.Data["k"] = bytes.Repeat([]byte("x"), 8<<10)
	c := podNamed("c")
	c.Pod.Spec.Priority = &high
	write(s, podNamed("a", big), podNamed("b", secret("s", "")), c)
	if got := names(s.Load()); got != "c b/s" {
		t.Errorf("kept are %q", got)
	}
	if strings.Count(log.String(), "pods-left=1") != 1 {
		t.Errorf("%s", log)
	}
}

// TestFullDisk: what cannot be written is said once, and written when it can.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	s, log := open(t, Config{Dir: dir, Every: time.Millisecond})
	must(t, os.Mkdir(filepath.Join(dir, podsFile+".new"), 0o700)) // nothing can be written over it
	must(t, os.WriteFile(filepath.Join(dir, podsFile+".new", "x"), nil, 0o600))
	s.Save([]Pod{podNamed("a")})
	for range 3 {
		if s.write() {
			t.Error("it is said to be written")
		}
		s.again()
	}
	if n := strings.Count(log.String(), "not kept for a start"); n != 1 {
		t.Errorf("it is said %d times: %s", n, log)
	}
	must(t, os.RemoveAll(filepath.Join(dir, podsFile+".new")))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { s.Run(ctx); close(done) }()
	for names(load(t, dir)) != "a" {
		time.Sleep(time.Millisecond)
	}
	cancel()
	<-done
}

func load(t *testing.T, dir string) []Pod {
	t.Helper()
	s, _ := open(t, Config{Dir: dir})
	return s.Load()
}
