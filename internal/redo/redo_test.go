package redo

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func open(t testing.TB, dir, boot string) *Log {
	t.Helper()
	l, err := Open(dir, boot)
	must(t, err)
	t.Cleanup(func() { must(t, l.Close()) })
	return l
}

// files are those of a directory without the journal.
func files(t testing.TB, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	all, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	for _, e := range all {
		if e.Name() == fileName {
			continue
		}
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		must(t, err)
		out[e.Name()] = string(data)
	}
	return out
}

func want(t testing.TB, dir string, files map[string]string, is map[string]string) {
	t.Helper()
	if !maps.Equal(files, is) {
		t.Errorf("%s has %v, want %v", dir, files, is)
	}
}

// inMemory is a directory whose syncs wait for no disk, where there is room for hundreds of journals.
func inMemory(t testing.TB) string {
	t.Helper()
	const shared = "/dev/shm"
	var st unix.Statfs_t
	err := unix.Statfs(shared, &st)
	if err != nil || st.Type != unix.TMPFS_MAGIC || int64(st.Bavail)*st.Bsize < 4000*size {
		return t.TempDir()
	}
	dir, err := os.MkdirTemp(shared, "berth-redo-") //nolint:usetesting // the directory of a test is on the disk
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	return dir
}

// crashed is a directory as a loss of power leaves it: the journal as it is given, and each file that was not synced in
// one of the states that the disk may have it in.
func crashed(t testing.TB, journal []byte, synced map[string]string, dirty []string, r *rand.Rand) string {
	t.Helper()
	dir := inMemory(t)
	must(t, os.WriteFile(filepath.Join(dir, fileName), journal, 0o600))
	for name, data := range synced {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(data), 0o600))
	}
	for _, name := range dirty {
		path := filepath.Join(dir, name)
		switch r.IntN(4) {
		case 0:
			must(t, os.RemoveAll(path))
		case 1:
			must(t, os.WriteFile(path, nil, 0o600))
		case 2:
			must(t, os.WriteFile(path, []byte("{\x00half"), 0o600))
		}
	}
	return dir
}

// TestTorn has the power go at each byte of the last entry, whatever the disk has of the files: those whose writing had
// returned are there as they were written, and the last one is as it was or as it was to be.
func TestTorn(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	dir := t.TempDir()
	l := open(t, dir, "one")
	must(t, l.Write("a", []byte("first")))
	must(t, l.Write("b", []byte("second")))
	must(t, l.Write("a", []byte("third")))
	before := files(t, dir)
	from := l.end
	must(t, l.Write("a", []byte(strings.Repeat("last", 10))))
	after := files(t, dir)
	journal, err := os.ReadFile(filepath.Join(dir, fileName))
	must(t, err)
	for torn := from; torn <= l.end; torn++ {
		for _, rest := range []byte{0, 0xff} {
			cut := bytes.Clone(journal)
			for i := torn; i < l.end; i++ {
				cut[i] = rest
			}
			is := crashed(t, cut, nil, []string{"a", "b"}, r)
			open(t, is, "two")
			if torn < l.end-1 || rest == 0xff && torn < l.end { // the last byte may be what it was
				want(t, fmt.Sprint(torn), files(t, is), before)
			} else if torn == l.end {
				want(t, fmt.Sprint(torn), files(t, is), after)
			}
		}
	}
	// A bit that turns over ends the journal there.
	for at := int64(0); at < l.end; at += 3 {
		bad := bytes.Clone(journal)
		bad[at] ^= 1 << r.IntN(8)
		is := crashed(t, bad, map[string]string{"a": "file", "b": "file"}, nil, r)
		open(t, is, "two")
		for name, has := range files(t, is) {
			if !slices.Contains([]string{"file", "first", "second", "third", after["a"]}, has) {
				t.Errorf("byte %d: %s is %q", at, name, has)
			}
		}
	}
}

// TestPowerCuts has any order of writes and removals, agents that end, journals that are full, and then a loss of
// power, which may leave of a removal that was not synced nothing.
func TestPowerCuts(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for round := range 12 {
		dir, boot := t.TempDir(), "one"
		l := open(t, dir, boot)
		names := []string{"a", "b", "c", "d"}
		for i := range 40 + r.IntN(60) {
			name := names[r.IntN(len(names))]
			switch r.IntN(8) {
			case 0, 1:
				must(t, l.Remove(name))
			case 2: // the agent ends, and the next one goes on
				must(t, l.Close())
				l = open(t, dir, boot)
			case 3:
				// Also such as are synced themselves.
				must(t, l.Write(name, bytes.Repeat([]byte{'x', byte('0' + i%10)}, r.IntN(maxEntry/3))))
			default:
				must(t, l.Write(name, fmt.Appendf(nil, "%d of %d", i, round)))
			}
			if r.IntN(10) == 0 { // the power goes: what the disk need not have is lost
				is, dirty := files(t, dir), slices.Collect(maps.Keys(l.names))
				journal, err := os.ReadFile(filepath.Join(dir, fileName))
				if errors.Is(err, fs.ErrNotExist) {
					continue
				}
				must(t, err)
				dirty = slices.DeleteFunc(dirty, func(n string) bool { return len(is[n])*2 > maxEntry })
				boot += "+"
				dir = crashed(t, journal, is, dirty, r)
				must(t, l.Close())
				l = open(t, dir, boot)
				want(t, dir, files(t, dir), is)
			}
		}
		is := files(t, dir)
		must(t, l.Close())
		l = open(t, dir, boot)
		want(t, dir, files(t, dir), is)
		if l.end != 0 || len(l.names) > 0 {
			t.Error("the journal is not begun anew")
		}
	}
}

// TestFull writes more than the journal takes: it is begun anew, and what it had is on the disk by then.
func TestFull(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, "one")
	settled := 0
	l.Hear(func(step string) {
		if step == "settle directory" {
			settled++
		}
	})
	data := []byte(strings.Repeat("x", 3000))
	for i := range 2 * size / len(data) {
		must(t, l.Write(strconv.Itoa(i%5), data))
	}
	if settled < 2 || l.end > size {
		t.Errorf("it was begun anew %d times, and ends at %d", settled, l.end)
	}
	if st, err := os.Stat(filepath.Join(dir, fileName)); err != nil || st.Size() != size {
		t.Errorf("the journal: %v, %v", st, err)
	}
	for _, name := range []string{"", "..", "a/b", fileName, "x\x00"} {
		if err := l.Write(name, nil); err == nil {
			t.Errorf("%q was taken for a name", name)
		}
	}
}

// TestTogether has many write at once: one sync is for all that have written before it.
func TestTogether(t *testing.T) {
	const writers = 50
	l := open(t, t.TempDir(), "one")
	must(t, l.Write("first", nil))
	appended, syncs, began, all := 0, 0, make(chan struct{}), make(chan struct{})
	var mu sync.Mutex
	l.Hear(func(step string) {
		mu.Lock()
		switch step {
		case "append":
			if appended++; appended == writers {
				close(all)
			}
		case "sync":
			syncs++
		}
		first := step == "sync" && syncs == 1
		mu.Unlock()
		if first {
			close(began)
			<-all
		}
	})
	var wait sync.WaitGroup
	write := func(i int) {
		if err := l.Write(strconv.Itoa(i), []byte{byte(i)}); err != nil {
			t.Error(err)
		}
	}
	wait.Go(func() { write(0) })
	<-began // it is at its sync, and the others have not written
	for i := 1; i < writers; i++ {
		wait.Go(func() { write(i) })
	}
	wait.Wait()
	if syncs != 2 {
		t.Errorf("%d syncs for %d writers", syncs, writers)
	}
}

// TestSyncFails: what the disk may not have nobody is told to be there, not by a later sync either, of which the kernel
// says nothing any more; and what comes then does not lie behind it.
func TestSyncFails(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, "one")
	must(t, l.Write("before", []byte("x")))
	l.Hear(func(step string) {
		if step == "sync" {
			must(t, l.file.Close())
		}
	})
	if err := l.Write("a", []byte("x")); err == nil {
		t.Fatal("written without a sync")
	}
	if err := l.sync(l.count); err == nil {
		t.Error("it is told to be there by another sync")
	}
	l.Hear(func(string) {})
	f, err := os.OpenFile(filepath.Join(dir, fileName), os.O_RDWR, 0)
	must(t, err)
	l.file = f
	must(t, l.Write("after", []byte("y")))
	if len(l.names) != 1 || l.end > 300 {
		t.Errorf("the journal has %v and ends at %d", l.names, l.end)
	}
	must(t, os.Remove(filepath.Join(dir, "after")))
	open(t, dir, "two")
	want(t, "after a loss of power", files(t, dir), map[string]string{"before": "x", "a": "x", "after": "y"})
}

// TestSameBoot has whoever wrote the files otherwise be right as long as the machine runs, and when the journal was
// begun anew.
func TestSameBoot(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, "one")
	must(t, l.Write("a", []byte("journal")))
	must(t, l.Write("b", []byte("journal")))
	must(t, os.WriteFile(filepath.Join(dir, "a"), []byte("file"), 0o600))
	must(t, os.Remove(filepath.Join(dir, "b")))
	for _, boot := range []string{"one", "two", "three"} {
		open(t, dir, boot)
		want(t, boot, files(t, dir), map[string]string{"a": "file"})
	}
}

const killedEnv, killedStep = "BERTH_TEST_REDO", "BERTH_TEST_REDO_STEP"

// TestProcess is who is killed in TestKilled.
func TestProcess(t *testing.T) {
	dir := os.Getenv(killedEnv)
	if dir == "" {
		t.Skip("TestKilled runs it")
	}
	left, err := strconv.Atoi(os.Getenv(killedStep))
	must(t, err)
	l, err := Open(dir, "two")
	must(t, err)
	l.full = 8 * maxEntry
	l.Hear(func(string) {
		if left--; left < 0 {
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
			select {}
		}
	})
	for i := range 3 {
		must(t, l.Write("a", []byte(strings.Repeat(strconv.Itoa(i), maxEntry/3))))
	}
	must(t, l.Remove("b"))
	for i := range 9 { // until the journal is full
		must(t, l.Write("c", []byte(strings.Repeat(strconv.Itoa(i), maxEntry/3))))
	}
}

// TestKilled kills who writes at each step. What it finds next is whole, and so is what it finds after a loss of power.
func TestKilled(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for step, more := 0, true; more; step++ {
		dir := filepath.Join(t.TempDir(), "made")
		if step%2 == 0 {
			l := open(t, dir, "one")
			must(t, l.Write("b", []byte("b")))
		}
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestProcess$")
		cmd.Env = append(os.Environ(), killedEnv+"="+dir, killedStep+"="+strconv.Itoa(step))
		out, err := cmd.CombinedOutput()
		if exit := new(exec.ExitError); err != nil && (!errors.As(err, &exit) || exit.ExitCode() >= 0) {
			t.Fatalf("%v: %s", err, out)
		}
		more = err != nil
		_ = os.Remove(filepath.Join(dir, "a.new"))
		_ = os.Remove(filepath.Join(dir, "c.new"))
		_ = os.Remove(filepath.Join(dir, fileName+".new"))
		is := files(t, dir)
		for name, has := range is {
			if name != "b" && (len(has) != maxEntry/3 || has != strings.Repeat(has[:1], len(has))) {
				t.Errorf("step %d: %s is %q", step, name, has[:min(20, len(has))])
			}
		}
		journal, err := os.ReadFile(filepath.Join(dir, fileName))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		must(t, err)
		var dirty []string
		for _, e := range read(journal) {
			dirty = append(dirty, e.Name)
		}
		cut := crashed(t, journal, is, dirty, r)
		l := open(t, cut, "three")
		for name, has := range files(t, cut) {
			// What was written and not yet in the journal may be lost: nobody has gone by it.
			if name != "b" && (len(has) != maxEntry/3 || has != strings.Repeat(has[:1], len(has)) || has[:1] > is[name][:1]) {
				t.Errorf("step %d: after a loss of power %s is %q", step, name, has[:min(20, len(has))])
			}
		}
		must(t, l.Write("a", []byte("on")))
	}
}

// TestFullDisk: where there is no room for the journal, or for a file, it is an error, and what was there is as it was.
func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root for a disk of its own")
	}
	dir := t.TempDir()
	if err := unix.Mount("small", dir, "tmpfs", 0, "size=128k"); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	l, err := Open(dir, "one")
	must(t, err)
	if err := l.Write("a", []byte("x")); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("without room for the journal: %v", err)
	}
	must(t, unix.Mount("", dir, "", unix.MS_REMOUNT, "size=1300k"))
	must(t, l.Write("a", []byte("kept")))
	if err := l.Write("a", []byte(strings.Repeat("x", 1<<20))); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("without room for the file: %v", err)
	}
	want(t, dir, files(t, dir), map[string]string{"a": "kept"})
	must(t, l.Remove("a"))
	must(t, l.Close())
}

// Whatever is in a journal, reading it ends, and what it has are names of files and no paths.
func FuzzRead(f *testing.F) {
	one, err := encode(entry{Era: "e", Boot: "b", Name: "a", Data: []byte("data")})
	must(f, err)
	two, err := encode(entry{Era: "e", Boot: "b", Name: "../a", Gone: true})
	must(f, err)
	f.Add(slices.Concat(one, one, two))
	f.Add(one[:len(one)-1])
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, e := range read(data) {
			if filepath.Base(e.Name) != e.Name || e.Name == fileName || e.Name == "." || e.Name == ".." {
				t.Errorf("%q", e.Name)
			}
		}
	})
}

// TestBehind has a disk not take what the journal says: there is a Log nevertheless, whose files are as they are, and
// which makes them what the journal says as soon as the disk takes it.
func TestBehind(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := open(t, dir, "1")
	must(t, l.Write("a", []byte("first")))
	must(t, l.Write("b", []byte("second")))
	must(t, os.Remove(filepath.Join(dir, "a"))) // a loss of power
	must(t, os.MkdirAll(filepath.Join(dir, "a", "in the way"), 0o700))
	l, err := Open(dir, "2")
	if err == nil {
		t.Fatal("a directory was taken for a file")
	}
	t.Cleanup(func() { must(t, l.Close()) })
	for _, act := range []func() error{
		func() error { return l.Write("b", []byte("third")) }, func() error { return l.Remove("b") },
	} {
		if err := act(); err == nil {
			t.Error("it acts while files are not what the journal says")
		}
	}
	if data, err := os.ReadFile(filepath.Join(dir, "b")); string(data) != "second" {
		t.Errorf("b has %q (%v)", data, err)
	}
	must(t, os.RemoveAll(filepath.Join(dir, "a")))
	must(t, l.Write("b", []byte("third")))
	want(t, dir, files(t, dir), map[string]string{"a": "first", "b": "third"})
}

// TestNoJournal has something else be where the journal is.
func TestNoJournal(t *testing.T) {
	t.Parallel()
	for name, put := range map[string]func(path string) error{
		"directory": func(path string) error { return os.Mkdir(path, 0o700) },
		"pipe":      func(path string) error { return unix.Mkfifo(path, 0o600) },
		"link":      func(path string) error { return os.Symlink("/etc/passwd", path) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			must(t, put(filepath.Join(dir, fileName)))
			l := open(t, dir, "1")
			must(t, l.Write("a", []byte("first")))
			must(t, os.Remove(filepath.Join(dir, fileName+damagedSuffix)))
			want(t, dir, files(t, dir), map[string]string{"a": "first"})
		})
	}
}
