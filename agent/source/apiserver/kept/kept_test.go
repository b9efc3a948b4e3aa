package kept

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
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
	s.Save(pods, nil)
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
	if names(got) != "a/s/token b/s" || got[0].Pod.Status.PodIP != "" || got[0].Pod.UID != "u-a" {
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

// damaged is a directory whose file a test damages.
type damaged struct {
	t    *testing.T
	dir  string
	path string
}

// kept are the pods that are left of a file, and what is said of it. What is damaged is put aside as it is.
func (d damaged) kept(what string, data []byte) (pods, log string) {
	d.t.Helper()
	must(d.t, os.WriteFile(d.path, data, 0o600))
	s, said := open(d.t, Config{Dir: d.dir})
	pods, log = names(s.Load()), said.String()
	if strings.Contains(log, "aside=") {
		if bad, err := os.ReadFile(d.path + ".bad"); err != nil || !bytes.Equal(bad, data) {
			d.t.Errorf("%s: aside are %d bytes, %v", what, len(bad), err)
		}
		must(d.t, os.Remove(d.path+".bad"))
	}
	return pods, log
}

// again has who was there be kept once more, after what was damaged.
func (d damaged) again(what, pods string) {
	d.t.Helper()
	s, _ := open(d.t, Config{Dir: d.dir})
	write(s, s.Load()...)
	if got := names(load(d.t, d.dir)); got != pods {
		d.t.Errorf("%s: kept are %q, and then %q", what, pods, got)
	}
}

// TestDamage flips and cuts off every byte that there is: what is damaged costs the pods that need it, and is said.
func TestDamage(t *testing.T) {
	dir := t.TempDir()
	s, _ := open(t, Config{Dir: dir})
	write(s, podNamed("a", secret("s", "")), podNamed("b", secret("t", "")), podNamed("c"))
	d := damaged{t, dir, filepath.Join(dir, podsFile)}
	good, err := os.ReadFile(d.path)
	must(t, err)
	head := bytes.Index(good, []byte(mark))
	for i := range good {
		flipped := bytes.Clone(good)
		flipped[i] ^= 1 << (i % 8)
		what := fmt.Sprintf("byte %d of %d flipped", i, len(good))
		switch pods, log := d.kept(what, flipped); {
		case !strings.Contains(log, "level=ERROR"):
			t.Errorf("%s: nobody says so: %s", what, log)
		case i < head && pods != "", i >= head && strings.Count(pods, " ") != 1:
			t.Errorf("%s: kept are %q", what, pods)
		}
		what = fmt.Sprintf("%d of %d bytes", i, len(good))
		if _, log := d.kept(what, good[:i]); !strings.Contains(log, "level=ERROR") {
			t.Errorf("%s: nobody says so: %s", what, log)
		}
	}
}

// TestDamageAtEnd: what comes after the first changes is there as a whole or not at all.
func TestDamageAtEnd(t *testing.T) {
	dir := t.TempDir()
	s, _ := open(t, Config{Dir: dir})
	write(s, podNamed("a", secret("s", "")))
	d := damaged{t, dir, filepath.Join(dir, podsFile)}
	good, err := os.ReadFile(d.path)
	must(t, err)
	write(s, podNamed("a", secret("s", "")), podNamed("b"))
	one, err := os.ReadFile(d.path)
	must(t, err)
	write(s, podNamed("a", secret("s", "")), podNamed("b"), podNamed("c"))
	more, err := os.ReadFile(d.path)
	must(t, err)
	if !bytes.HasPrefix(one, good) || !bytes.HasPrefix(more, one) || len(more) == len(one) || len(one) == len(good) {
		t.Fatal("the changes were not put at the end")
	}
	for i := len(good); i < len(one); i++ {
		what := fmt.Sprintf("%d of %d bytes", i, len(one))
		if pods, log := d.kept(what, one[:i]); pods != "a/s" || strings.Contains(log, "level=ERROR") {
			t.Errorf("%s: %q, %s", what, pods, log)
		}
		flipped := bytes.Clone(more)
		flipped[i] ^= 1 << (i % 8)
		what = fmt.Sprintf("byte %d of %d flipped", i, len(more))
		if pods, log := d.kept(what, flipped); pods != "a/s c" || !strings.Contains(log, "level=ERROR") {
			t.Errorf("%s: %q, %s", what, pods, log)
		}
	}
	first := good[:bytes.Index(good, []byte(mark))]
	last := more[len(one):]
	for _, c := range []struct {
		what  string
		data  []byte
		pods  string
		error bool
	}{
		{"with zeros at the end", slices.Concat(more, make([]byte, 9000)), "a/s b c", false},
		{"the first ones left out", slices.Concat(first, more[len(good):]), "b c", true},
		{"one left out", slices.Concat(good, last), "a/s c", true},
		{"turned around", slices.Concat(good, last, more[len(good):len(one)]), "a/s c", true},
		{"the last one twice", slices.Concat(more, last), "a/s b c", false}, // nobody was told that the second is kept
		{"of another file's head", slices.Concat(bytes.Replace(first, []byte(`"first":2`), []byte(`"first":3`), 1), more[len(first):]), "", true},
		{"nothing but marks", slices.Concat(first, bytes.Repeat([]byte(mark), 1000)), "", true},
	} {
		if pods, log := d.kept(c.what, c.data); pods != c.pods || strings.Contains(log, "level=ERROR") != c.error {
			t.Errorf("%s: %q, %s", c.what, pods, log)
		}
		d.again(c.what, c.pods)
	}
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
	if got := names(s.Load()); got != "b/s c" {
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
	s.Save([]Pod{podNamed("a")}, nil)
	for range 3 {
		if s.write() {
			t.Error("it is said to be written")
		}
	}
	s.ring()
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

// TestHanded: what was issued to a pod is there after a kill, as long as the pod is kept.
func TestHanded(t *testing.T) {
	dir := t.TempDir()
	s, _ := open(t, Config{Dir: dir, Max: 64 << 10})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { s.Run(ctx); close(done) }()
	saved := make(chan struct{})
	s.Save([]Pod{podNamed("a"), podNamed("b")}, func() { close(saved) })
	<-saved
	s.Hand(t.Context(), "u-a", "token", []byte(hidden))
	s.Hand(t.Context(), "u-b", "token", []byte(hidden))
	s.Hand(t.Context(), "u-b", "large", make([]byte, 60<<10))
	s.Hand(t.Context(), "u-other", "token", []byte(hidden))
	has := func(s *Store, uid types.UID, name string) bool {
		_, ok := s.Handed(uid, name)
		return ok
	}
	// Another one reads what is on the disk now, as after a kill.
	again, _ := open(t, Config{Dir: dir})
	if text, _ := again.Handed("u-a", "token"); string(text) != hidden {
		t.Errorf("there is %q", text)
	}
	if !has(again, "u-b", "token") || has(again, "u-b", "large") || has(again, "u-other", "token") {
		t.Error("what is kept is another thing")
	}
	data, err := os.ReadFile(filepath.Join(dir, podsFile))
	if must(t, err); bytes.Contains(data, []byte(hidden)) {
		t.Error("the file has it in the clear")
	}
	saved = make(chan struct{})
	s.Save([]Pod{podNamed("b")}, func() { close(saved) })
	<-saved
	if has(s, "u-a", "token") || !has(s, "u-b", "token") {
		t.Error("what was issued to a pod that is gone is there still")
	}
	cancel()
	<-done
	again, _ = open(t, Config{Dir: dir})
	if has(again, "u-a", "token") || !has(again, "u-b", "token") || names(again.Load()) != "b" {
		t.Error("the next one has another thing")
	}
}

// TestRewritten: what is put at the end does not pile up, and nothing is lost of it.
func TestRewritten(t *testing.T) {
	dir := t.TempDir()
	s, _ := open(t, Config{Dir: dir})
	path := filepath.Join(dir, podsFile)
	for i := range 60 {
		big := secret("s", "")
		big.Data["k"] = bytes.Repeat([]byte{byte(i)}, 100<<10)
		write(s, podNamed("a", big), podNamed(fmt.Sprint(i)))
		st, err := os.Stat(path)
		if must(t, err); st.Size() > 3<<20 {
			t.Fatalf("write %d: the file has %d bytes", i, st.Size())
		}
		got := load(t, dir)
		if names(got) != fmt.Sprintf("%d a/s", i) || got[1].Objects[0].(*corev1.Secret).Data["k"][0] != byte(i) {
			t.Fatalf("write %d: %s", i, names(got))
		}
	}
	// Another one that cuts the file, or puts another in its place, loses nothing.
	must(t, os.Truncate(path, 10))
	write(s, podNamed("b"))
	write(s, podNamed("b"))
	if got := names(load(t, dir)); got != "b" {
		t.Errorf("%q", got)
	}
}

// TestBeforeMarks reads what a version wrote whose changes had no marks.
func TestBeforeMarks(t *testing.T) {
	dir := t.TempDir()
	s, _ := open(t, Config{Dir: dir})
	head := []byte(magic + `{"version":2,"node":"node1","key":"` + s.log.key.id + "\"}\n")
	data := bytes.Clone(head)
	var ends []int
	for place, p := range []Pod{podNamed("a", secret("s", "")), podNamed("b"), podNamed("c")} {
		c, _, _ := newState().plan([]Pod{p}, defaultMax)
		plain, err := json.Marshal(c)
		must(t, err)
		sealed, err := s.log.key.seal(plain, placed(head, uint64(place)))
		must(t, err)
		data = append(binary.BigEndian.AppendUint32(data, uint32(len(sealed))), sealed...)
		ends = append(ends, len(data))
	}
	flipped := bytes.Clone(data)
	flipped[ends[1]-1]++
	d := damaged{t, dir, filepath.Join(dir, podsFile)}
	for _, c := range []struct {
		what  string
		data  []byte
		pods  string
		error bool
	}{
		{"whole", data, "a/s b c", false},
		{"torn", data[:ends[2]-1], "a/s b", false},
		{"the first torn", data[:ends[0]-1], "", true},
		{"damaged", flipped, "a/s", true},
	} {
		if pods, log := d.kept(c.what, c.data); pods != c.pods || strings.Contains(log, "level=ERROR") != c.error {
			t.Errorf("%s: %q, %s", c.what, pods, log)
		}
		d.again(c.what, c.pods)
	}
}

// TestBefore reads what a version wrote that sealed everything as one.
func TestBefore(t *testing.T) {
	dir := t.TempDir()
	s, _ := open(t, Config{Dir: dir})
	pod, err := podNamed("a").Pod.Marshal()
	must(t, err)
	object, err := secret("s", "").Marshal()
	must(t, err)
	plain, err := json.Marshal(wholeContent{
		Pods: [][]byte{pod}, Objects: []item{{Kind: "Secret", Data: object}}, Of: [][]int{{0}},
	})
	must(t, err)
	head := []byte(magic + `{"version":1,"node":"node1","key":"` + s.log.key.id + "\"}\n")
	sealed, err := s.log.key.seal(plain, head)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, podsFile), append(head, sealed...), 0o600))
	s, log := open(t, Config{Dir: dir})
	if got := names(s.Load()); got != "a/s" {
		t.Fatalf("%q, %s", got, log)
	}
	write(s, podNamed("a", secret("s", "")))
	if got := names(load(t, dir)); got != "a/s" {
		t.Errorf("%q", got)
	}
	if data, err := os.ReadFile(filepath.Join(dir, podsFile)); err != nil || !bytes.Contains(data, []byte(`"version":3`)) {
		t.Errorf("%.100q, %v", data, err)
	}
}
