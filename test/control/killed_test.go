//go:build linux && amd64

package control

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// files are the contents of the files below a directory, by their names in it.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for path, text := range contents(t, dir) {
		name, err := filepath.Rel(dir, path)
		if err != nil {
			t.Fatal(err)
		}
		all[name] = string(text)
	}
	return all
}

// atEachStep kills a command before each of some changes in turn, until it comes to its end before. After each kill
// killed is called.
func atEachStep(t *testing.T, of func(path string) bool, dir string, args []string, killed func(step int)) {
	t.Helper()
	for last := 1; ; last++ {
		n, out, err := steps(t, of, last, dir, args...)
		if err == nil {
			t.Logf("%s: killed before each of %d steps", strings.Join(args[:2], " "), n)
			if n == 0 {
				t.Errorf("it has changed nothing: %s", out)
			}
			return
		}
		if n != last {
			t.Fatalf("step %d of %d: %v: %s", n, last, err, out)
		}
		killed(last)
	}
}

// TestRenewKilled kills the renewal of certificates at each step. Each of them is whole at each, and the one that comes
// to its end leaves nothing.
func TestRenewKilled(t *testing.T) {
	t.Parallel()
	p := start(t, t.TempDir())
	p.write(t, "kept")
	p.stop(t)
	before := files(t, p.dir)
	atEachStep(t, below(p.dir), p.dir, []string{"certs", "renew"}, func(step int) {
		if out, err := control(t, p.dir, "certs", "list"); err != nil {
			t.Fatalf("step %d: %v: %s", step, err, out)
		}
	})
	// Of those that are killed elsewhere.
	for _, name := range []string{"pki/apiserver.pem.new", "pki/ca.crt.new", "member.json.new", "etcd.begun.new"} {
		if err := os.WriteFile(filepath.Join(p.dir, name), []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p = start(t, p.dir)
	p.has(t, "kept")
	p.stop(t)
	after := files(t, p.dir)
	for name := range after {
		if _, was := before[name]; !was && !strings.HasPrefix(name, "snapshots/") {
			t.Errorf("there is %s, and was not", name)
		}
	}
	for name := range before {
		if strings.HasSuffix(name, "ca.pem") && before[name] != after[name] {
			t.Errorf("%s is another one", name)
		}
	}
}

// wholeCopy fails where a copy of a store is not all of it.
func wholeCopy(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	end := max(len(text)-sha256.Size, 0)
	if sum := sha256.Sum256(text[:end]); !bytes.Equal(sum[:], text[end:]) {
		return fmt.Errorf("a copy of %d bytes is not whole", len(text))
	}
	return nil
}

// TestSnapshotKilled kills the copying of a store at each step. The copy is not there, or is whole.
func TestSnapshotKilled(t *testing.T) {
	t.Parallel()
	p := start(t, t.TempDir())
	p.write(t, "kept")
	dir := t.TempDir()
	path := filepath.Join(dir, "copy.db")
	check := func(step int) {
		if err := wholeCopy(path); err != nil && !os.IsNotExist(err) {
			t.Errorf("step %d: %v", step, err)
		}
	}
	atEachStep(t, below(dir), p.dir, []string{"etcd", "snapshot", path}, check)
	check(0)
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("there is left %v, %v", left, err)
	}
}

// TestJoinKilled kills a machine that joins at each step. It joins when the command is run again, and has then what it
// would have had.
func TestJoinKilled(t *testing.T) {
	t.Parallel()
	at := memberFlags{"127.0.0.1", "192.0.2.1", ports(t, "127.0.0.1")}
	p := at.start(t, t.TempDir(), at.peer()...)
	p.write(t, "kept")
	other := memberFlags{"127.0.0.2", "192.0.2.2", ports(t, "127.0.0.2")}
	command := append(strings.Fields(p.run(t, "token", "create", "--member"))[1:], other.peer()...)
	whole := t.TempDir()
	if out, err := control(t, whole, command...); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	want := files(t, whole)
	dir := filepath.Join(t.TempDir(), "data")
	atEachStep(t, below(dir), dir, command, func(step int) {
		out, err := control(t, dir, command...)
		if err != nil && !strings.Contains(out, "is there already") {
			t.Fatalf("step %d: join again: %v: %s", step, err, out)
		}
		got := files(t, dir)
		for name := range got {
			if text, known := want[name]; !known || name != "member.json" && text != got[name] {
				t.Errorf("step %d: %s is left, or is another one", step, name)
			}
		}
		if len(got) != len(want) || strings.Contains(got["member.json"], `"joining": true`) {
			t.Errorf("step %d: there is %q", step, slices.Sorted(maps.Keys(got)))
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	})
	other.start(t, dir).has(t, "kept")
}

// TestDefragKilled kills a server that makes its database smaller. It has all objects, and what was to be the next
// database is gone, when it runs again.
func TestDefragKilled(t *testing.T) {
	t.Parallel()
	p := start(t, t.TempDir())
	p.write(t, "kept")
	store := filepath.Join(p.dir, "etcd", "member", "snap")
	if err := os.WriteFile(filepath.Join(store, "db.tmp.1"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		asked := make(chan struct{})
		go func() {
			defer close(asked)
			_, _ = control(t, p.dir, "etcd", "defrag") // it fails where the server is killed
		}()
		for dead := false; !dead; {
			select {
			case <-asked:
				dead = true
			default:
				left, err := filepath.Glob(filepath.Join(store, "db.tmp.*"))
				dead = err != nil || slices.ContainsFunc(left, func(name string) bool { return filepath.Ext(name) != ".1" })
			}
		}
		p.kill()
		<-asked
		p = start(t, p.dir)
		p.has(t, "kept")
		left, err := filepath.Glob(filepath.Join(store, "db.tmp.*"))
		if err != nil || len(left) > 0 {
			t.Errorf("there is left %q, %v", left, err)
		}
	}
	if err := filepath.WalkDir(p.dir, func(path string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(path, ".new") {
			t.Errorf("%s is left", path)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}

// TestRestoreKilledAtSteps kills a restore before each of its last steps, by which the stores change places. There is
// the old one or the new one.
func TestRestoreKilledAtSteps(t *testing.T) {
	t.Parallel()
	const swap = 16
	p := start(t, t.TempDir())
	p.write(t, "old")
	file := snapshot(t, p)
	p.write(t, "new")
	p.stop(t)
	command := []string{"etcd", "restore", file}
	all, out, err := steps(t, below(p.dir), 0, p.dir, command...)
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	every := 3
	if os.Getenv("BERTH_TEST_LONG") != "" {
		every = 1
	}
	for last := all - swap; last <= all; last += every {
		p = start(t, p.dir)
		p.write(t, "new")
		p.stop(t)
		n, out, err := steps(t, below(p.dir), last, p.dir, command...)
		t.Logf("step %d of %d: %v; left: %q", n, all, err, etcds(t, p.dir))
		if err == nil {
			t.Logf("it has %d steps now: %s", n, out)
		}
		p = start(t, p.dir)
		if !p.holds(t, "old") && !p.holds(t, "new") {
			t.Errorf("step %d: there is neither of the stores", n)
		}
		p.stop(t)
		for _, part := range []string{"etcd.restoring", "etcd.swap.json", "etcd.swap.json.new"} {
			if _, err := os.Stat(filepath.Join(p.dir, part)); err == nil {
				t.Errorf("step %d: %s is left", n, part)
			}
		}
	}
}
