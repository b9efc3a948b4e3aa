package pulled

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-node/berth/agent/record"
)

// machine has images, by their full names.
type machine struct {
	t      *testing.T
	dir    string
	policy Policy
	images map[string]string
	broken error
	*Records
}

func newMachine(t *testing.T, kind string, images ...string) *machine {
	t.Helper()
	p, err := NewPolicy(kind, images)
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{t: t, dir: filepath.Join(t.TempDir(), "image_manager"), policy: p, images: map[string]string{}}
	m.restart()
	return m
}

// restart is what a new agent finds after the old one was killed.
func (m *machine) restart() {
	m.t.Helper()
	r, err := Open(Config{Dir: m.dir, Policy: m.policy, Find: func(_ context.Context, i Image) (id string, names []string, err error) {
		if id = m.images[i.String()]; id == "" && slices.Contains(slices.Collect(maps.Values(m.images)), i.Ref) {
			id = i.Ref
		}
		for name, of := range m.images {
			if of == id {
				names = append(names, strings.TrimSuffix(name, " for wasm"))
			}
		}
		return id, names, m.broken
	}})
	if err != nil {
		m.t.Fatal(err)
	}
	m.Records = r
}

func (m *machine) begin(ref string) *Pull {
	m.t.Helper()
	p, err := m.Begin(m.t.Context(), Image{Ref: ref})
	if err != nil {
		m.t.Fatal(err)
	}
	return p
}

func (m *machine) pull(ref, full, id string, by *Secret) {
	m.t.Helper()
	p := m.begin(ref)
	m.images[full] = id
	p.Done(m.t.Context(), id, by)
}

func (m *machine) may(want bool, ref, id string, secrets ...Secret) {
	m.t.Helper()
	ok, err := m.May(m.t.Context(), Image{Ref: ref}, id, func() []Secret { return secrets })
	if err != nil || ok != want {
		m.t.Errorf("may use %s (%s) with %v: %t, %v; want %t", ref, id, secrets, ok, err, want)
	}
}

func (m *machine) files(dir string) []string {
	m.t.Helper()
	out, err := filepath.Glob(filepath.Join(m.dir, dir, "*"))
	if err != nil {
		m.t.Fatal(err)
	}
	return out
}

func secret(name, hash string) Secret {
	return Secret{Namespace: "default", Name: name, CredentialHash: hash}
}

func TestOnlyWhoHasShownCredentials(t *testing.T) {
	m := newMachine(t, "NeverVerifyPreloadedImages")
	a, b := secret("a", "good"), secret("b", "other")
	m.may(true, "r.io/x:1", "preloaded")
	m.pull("r.io/x:1", "r.io/x:1", "one", &a)
	for range 2 {
		m.may(true, "r.io/x:1", "one", a)
		m.may(true, "r.io/x:1", "one", b, a)
		m.may(true, "r.io/x@sha256:"+strings.Repeat("0", 64), "one", a)
		m.may(true, "r.io/x:1", "one", secret("c", "good"))
		m.may(false, "r.io/x:1", "one")
		m.may(false, "r.io/x:1", "one", b)
		m.may(false, "r.io/x:1", "one", secret("a", "other"))
		m.may(false, "r.io/y:1", "one", a) // somebody else's repository with the same content
		m.may(true, "r.io/x:1", "preloaded")
		m.restart()
	}
	// Secrets of an API server are known again when there is something else in them.
	s := Secret{UID: "1", Namespace: "default", Name: "s", CredentialHash: "s1"}
	m.pull("r.io/x:1", "r.io/x:1", "one", &s)
	s.CredentialHash = "s2"
	m.may(true, "r.io/x:1", "one", s)
	m.may(true, "r.io/x:1", "one", secret("t", "s2"))
	m.may(false, "r.io/x:1", "one", secret("t", "s1"))
	m.may(false, "r.io/x:1", "one", Secret{UID: "2", Namespace: "default", Name: "s", CredentialHash: "s3"})

	m.pull("busybox", "docker.io/library/busybox:latest", "public", nil)
	m.may(true, "docker.io/library/busybox:2", "public")
	m.pull("busybox", "docker.io/library/busybox:latest", "public", &a)
	m.may(true, "busybox", "public", b)
	if left := m.files(intentsDir); len(left) > 0 {
		t.Errorf("intents are left: %v", left)
	}
	files := m.files(recordsDir)
	for _, f := range files {
		if st, err := os.Stat(f); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", f, st.Mode(), err)
		}
	}
	if len(files) != 2 {
		t.Errorf("records: %v", files)
	}
}

func TestPolicies(t *testing.T) {
	for _, c := range []struct {
		kind            string
		images          []string
		preloaded, mine bool
	}{
		{"NeverVerify", nil, true, true},
		{"NeverVerifyPreloadedImages", nil, true, false},
		{"NeverVerifyAllowlistedImages", nil, false, false},
		{"NeverVerifyAllowlistedImages", []string{"r.io/x"}, true, true},
		{"NeverVerifyAllowlistedImages", []string{"r.io/*"}, true, true},
		{"NeverVerifyAllowlistedImages", []string{"r.io/x/*", "r.i/*", "r.io/xx", "docker.io/library/x"}, false, false},
		{"AlwaysVerify", nil, false, false},
	} {
		m := newMachine(t, c.kind, c.images...)
		a := secret("a", "good")
		m.pull("r.io/x:1", "r.io/x:1", "one", &a)
		m.may(c.preloaded, "r.io/x:1", "preloaded")
		m.may(c.mine, "r.io/x:1", "one")
		m.may(true, "r.io/x:1", "one", a)
	}
	for s, want := range map[string]string{
		"": "name, or", "*": "name, or", "/*": "name, or", "r.io*": "name, or", "r.io/*/*": "name, or", " r.io/*": "name, or", "r.io/*x": "invalid reference",
		"r.io/x:1": `must be "r.io/x"`, "busybox": `must be "docker.io/library/busybox"`, "r.io/x@sha256:" + strings.Repeat("0", 64): `must be "r.io/x"`, "r.io/X": "lowercase",
	} {
		if _, err := NewPolicy("NeverVerifyAllowlistedImages", []string{s}); s != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %s", s, err, want)
		}
	}
	for kind, images := range map[string][]string{"": nil, "Sometimes": nil, "AlwaysVerify": {"r.io/x"}} {
		if _, err := NewPolicy(kind, images); err == nil {
			t.Errorf("%q with %v was taken", kind, images)
		}
	}
}

// TestKilled has the agent killed between any two of its acts. An image that it has pulled must never be taken for one
// that was there.
func TestKilled(t *testing.T) {
	a := secret("a", "good")
	for name, act := range map[string]struct {
		do      func(*machine)
		allowed bool // for whose credentials were good
	}{
		"before the intent": {func(*machine) {}, true},
		"before the pull":   {func(m *machine) { m.begin("r.io/x:1") }, true},
		"after the pull":    {func(m *machine) { m.begin("r.io/x:1"); m.images["r.io/x:1"] = "one" }, false},
		"before the end": {func(m *machine) {
			m.begin("r.io/x:1")
			m.images["r.io/x:1"] = "one"
			m.add(m.t.Context(), Image{Ref: "r.io/x:1"}, "one", &a)
		}, true},
		"after the end":     {func(m *machine) { m.pull("r.io/x:1", "r.io/x:1", "one", &a) }, true},
		"when told to stop": {func(m *machine) { p := m.begin("r.io/x:1"); p.Failed(true); m.images["r.io/x:1"] = "one" }, false},
		"after it was known": {func(m *machine) {
			m.begin("r.io/x:1")
			m.images["r.io/x:1"] = "one"
			m.restart()
			m.may(true, "r.io/y", "two")
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, "NeverVerifyPreloadedImages")
			act.do(m)
			m.restart()
			id := m.images["r.io/x:1"]
			if id == "" {
				m.images["r.io/x:1"] = "one" // by hand
			}
			if id != "" {
				m.may(false, "r.io/x:1", "one")
				m.may(false, "r.io/other:1", "one") // as well by any other name
				m.may(act.allowed, "r.io/x:1", "one", a)
			}
			m.pull("r.io/x:1", "r.io/x:1", "one", &a)
			m.may(true, "r.io/x:1", "one", a)
			m.may(false, "r.io/x:1", "one")
			if left := m.files(intentsDir); len(left) > 0 {
				t.Errorf("intents are left: %v", left)
			}
		})
	}
}

// TestPreloadedStays has pulls of an image that was there come to nothing.
func TestPreloadedStays(t *testing.T) {
	m := newMachine(t, "NeverVerifyPreloadedImages")
	m.images["r.io/x:1"] = "old"
	m.begin("r.io/x:1")
	m.may(true, "r.io/x:1", "old")
	m.restart()
	m.may(true, "r.io/x:1", "old")
	p := m.begin("r.io/x:1")
	q := m.begin("r.io/x:1")
	p.Failed(false)
	if len(m.files(intentsDir)) != 1 {
		t.Error("the intent of the other pull is gone")
	}
	m.images["r.io/x:1"] = "new"
	m.may(false, "r.io/x:1", "new") // not yet told of
	q.Done(t.Context(), "new", nil)
	m.may(true, "r.io/x:1", "new")
	m.may(true, "r.io/x:1", "old")
	if left := m.files(intentsDir); len(left) > 0 {
		t.Errorf("intents are left: %v", left)
	}
}

// TestOtherNames has an image on the machine by several names, one of which it was pulled by. An ID is no name.
func TestOtherNames(t *testing.T) {
	m := newMachine(t, "NeverVerifyPreloadedImages")
	const id = "sha256:0123"
	a := secret("a", "good")
	m.images["r.io/loaded:1"] = id
	m.begin("r.io/z:1") // as well, and not yet done
	m.images["r.io/z:1"] = id
	m.pull("r.io/x:1", "r.io/x:1", id, &a)
	m.images["r.io/later:1"] = id
	for range 2 {
		m.may(true, "r.io/loaded:1", id)
		m.may(false, "r.io/x:1", id)
		m.may(false, "r.io/z:1", id)
		m.may(false, "r.io/later:1", id)
		m.may(false, id, id)
		m.restart()
	}
	m.pull("r.io/loaded:1", "r.io/loaded:1", id, &a)
	m.may(false, "r.io/loaded:1", id)
	m.may(true, "r.io/loaded:1", id, a)

	// The same, when the agent was killed.
	m = newMachine(t, "NeverVerifyPreloadedImages")
	m.images["r.io/loaded:1"] = id
	m.begin("r.io/x:1")
	m.images["r.io/x:1"] = id
	m.restart()
	m.may(true, "r.io/loaded:1", id)
	m.may(false, "r.io/x:1", id, a)
	m.may(false, id, id, a)
}

func TestPrune(t *testing.T) {
	m := newMachine(t, "AlwaysVerify")
	m.pull("r.io/x:1", "r.io/x:1", "one", nil)
	m.pull("r.io/y:1", "r.io/y:1", "two", nil)
	m.begin("r.io/z:1")
	m.restart()
	later := time.Now().Add(time.Minute)
	if err := m.Prune(t.Context(), map[string]bool{}, time.Time{}); err != nil || len(m.files(recordsDir)) != 2 {
		t.Errorf("records that are later than the look at the images: %v, %v", m.files(recordsDir), err)
	}
	if err := m.Prune(t.Context(), map[string]bool{"two": true}, later); err != nil || len(m.files(recordsDir)) != 1 || len(m.files(intentsDir)) != 1 {
		t.Errorf("left: %v, %v, %v", m.files(recordsDir), m.files(intentsDir), err)
	}
	m.may(true, "r.io/y", "two")
	m.may(false, "r.io/x", "one")
	for _, f := range m.files(intentsDir) {
		old := time.Now().Add(-2 * staleIntent)
		if err := os.Chtimes(f, old, old); err != nil {
			t.Fatal(err)
		}
	}
	m.restart()
	if err := m.Prune(t.Context(), map[string]bool{"two": true}, later); err != nil || len(m.files(intentsDir)) != 0 {
		t.Errorf("an intent that led to nothing is left: %v, %v", m.files(intentsDir), err)
	}
}

func TestBadFiles(t *testing.T) {
	m := newMachine(t, "NeverVerifyPreloadedImages")
	m.pull("r.io/x:1", "r.io/x:1", "one", nil)
	m.begin("r.io/z:1")
	for _, f := range slices.Concat(m.files(recordsDir), m.files(intentsDir)) {
		for _, content := range []string{"", "{", "[]", `{"kind":"Pod"}`, `{"kind":"ImagePulledRecord","imageRef":"two"}`, `{"kind":"ImagePullIntent","image":"two"}`} {
			if err := record.Replace(f, []byte(content)); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(f+".new", nil, 0o600); err != nil {
				t.Fatal(err)
			}
			m.restart()
			m.may(false, "r.io/x:1", "one")
			if _, err := os.Stat(f + ".new"); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("half a file is left: %v", err)
			}
		}
	}
	m.pull("r.io/x:1", "r.io/x:1", "one", nil)
	m.may(true, "r.io/x:1", "one")

	// A runtime that does not answer is no reason to forget anything.
	m.begin("r.io/x:2")
	m.restart()
	m.broken = errors.New("no answer")
	if ok, err := m.May(t.Context(), Image{Ref: "r.io/x:1"}, "one", nil); err == nil || ok {
		t.Errorf("%t, %v", ok, err)
	}
	if _, err := m.Begin(t.Context(), Image{Ref: "r.io/x:1"}); err == nil {
		t.Error("a pull began")
	}
	m.broken = nil
	if len(m.files(intentsDir)) != 2 { // with the one that is of no use
		t.Errorf("intents: %v", m.files(intentsDir))
	}
}

func TestHandlersAndManySecrets(t *testing.T) {
	m := newMachine(t, "NeverVerifyPreloadedImages")
	if _, err := m.Begin(t.Context(), Image{"r.io/x:1", "wasm"}); err != nil {
		t.Fatal(err)
	}
	m.images["r.io/x:1 for wasm"] = "module"
	m.restart()
	m.may(true, "r.io/x:1", "program")
	m.may(false, "r.io/x:1", "module")
	for i := range maxSecrets + 5 {
		s := secret("s", fmt.Sprint(i))
		m.pull("r.io/x:1", "r.io/x:1", "one", &s)
	}
	m.may(false, "r.io/x:1", "one", secret("s", "4"))
	m.may(true, "r.io/x:1", "one", secret("s", "5"))
	var none *Records
	p, err := none.Begin(t.Context(), Image{Ref: "x"})
	p.Done(t.Context(), "one", nil)
	p.Failed(true)
	if ok, mayErr := none.May(t.Context(), Image{Ref: "x"}, "one", nil); !ok || err != nil || mayErr != nil || none.Prune(t.Context(), nil, time.Now()) != nil {
		t.Errorf("%t, %v, %v", ok, err, mayErr)
	}
}

func FuzzFiles(f *testing.F) {
	f.Add([]byte(`{"kind":"ImagePulledRecord","imageRef":"two","credentialMapping":{"x":{"kubernetesSecrets":[{"uid":"1"}]}}}`))
	f.Add([]byte(`{"kind":"ImagePullIntent","image":"two","berthBefore":"a"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if p, err := decodeRecord(data); (err == nil) != (p != nil) || p != nil && p.ImageRef == "" {
			t.Errorf("%+v, %v", p, err)
		}
		if i, err := decodeIntent(data); err == nil && i.Image == "" {
			t.Errorf("%+v", i)
		}
	})
}

func FuzzPolicy(f *testing.F) {
	f.Add("r.io/x")
	f.Add("r.io/*")
	f.Fuzz(func(t *testing.T, s string) {
		p, err := NewPolicy("NeverVerifyAllowlistedImages", []string{s})
		if err == nil && !p.verifies("", true) {
			t.Errorf("%q is for every image", s)
		}
	})
}
