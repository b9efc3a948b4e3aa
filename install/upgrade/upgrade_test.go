package upgrade

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t testing.TB, path, text string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte(text), 0o755))
}

func read(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(b)
}

// machine is a machine in a directory: an agent runs when there is a file that says which version it is of. An agent
// writes its store its own way, and reads none of a later version.
type machine struct{ dir string }

func (m machine) at(name string) string { return filepath.Join(m.dir, name) }

// files are those of the job, the program last.
func (m machine) files() []string { return []string{"libexec/helper", "unit", "bin/berth"} }

func (m machine) Stop(context.Context) (func(), error) {
	if read(m.at("stuck")) != "" {
		return nil, errors.New("it does not end")
	}
	return sync.OnceFunc(func() {}), remove(m.at("running"))
}

func (m machine) Start(_ context.Context, program string) error {
	version := read(program)
	store := m.at("state/store")
	if version == "broken" {
		must2(os.WriteFile(store, []byte("broken"), 0o600))
		must2(os.WriteFile(m.at("state/records/broken"), nil, 0o600))
		must2(os.WriteFile(m.at("running"), []byte(version), 0o600))
		return errors.New("it is not ready within 1s")
	}
	if has := read(store); has != version && has != "old" {
		return fmt.Errorf("the store is %q, and this is %q", has, version)
	}
	must2(os.WriteFile(store, []byte(version), 0o600))
	return os.WriteFile(m.at("running"), []byte(version), 0o600)
}

func (m machine) Again(ctx context.Context, program string) error { return m.Start(ctx, program) }

func (m machine) Install(_ context.Context, file string) error {
	for _, name := range m.files() {
		if err := copyFile(file, m.at(name), 0o755); err != nil {
			return err
		}
	}
	return nil
}

func (m machine) Owns(files []File, settled bool) error {
	return os.WriteFile(m.at("owned"), fmt.Appendf(nil, "%d %t", len(files), settled), 0o600)
}

func must2(err error) {
	if err != nil {
		panic(err)
	}
}

// newMachine runs the old version, and has a release of the version to.
func newMachine(t testing.TB, dir, to string) machine {
	m := machine{dir}
	for _, name := range m.files() {
		write(t, m.at("release/"+name), to)
		if name != "unit" { // the new version brings one more
			write(t, m.at(name), "old")
		}
	}
	write(t, m.at("state/store"), "old")
	write(t, m.at("state/records/one"), "old")
	must(t, m.Start(t.Context(), m.at("bin/berth")))
	return m
}

func (m machine) job() Job {
	j := Job{From: "v1", To: "v2", Stores: []string{m.at("state/store"), m.at("state/records"), m.at("state/absent")}}
	for _, name := range m.files() {
		j.Files = append(j.Files, File{Path: m.at(name), From: m.at("release/" + name), Mode: 0o755})
	}
	return j
}

func (m machine) open(t testing.TB) *Upgrades {
	t.Helper()
	u, err := Open(m.at("upgrades"), func(what string) { t.Log(what) })
	must(t, err)
	t.Cleanup(u.Close)
	return u
}

// all is what the machine has, but for what the tests and upgrades have.
func (m machine) all(t testing.TB) map[string]string {
	t.Helper()
	out := map[string]string{}
	must(t, filepath.WalkDir(m.dir, func(path string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(m.dir, path)
		switch {
		case err != nil:
			return err
		case rel == "release" || rel == "upgrades":
			return fs.SkipDir
		case !d.IsDir() && rel != "owned":
			out[rel] = read(path)
		}
		return nil
	}))
	return out
}

// is holds the machine to a version, with none of the names that upgrades use but those that are to be there.
func (m machine) is(t testing.TB, version string, previous bool) {
	t.Helper()
	want := map[string]string{"state/store": version, "state/records/one": "old", "running": version}
	for _, name := range m.files() {
		switch {
		case version == "new":
			want[name] = "new"
			if previous && name != "unit" {
				want[name+Previous] = "old"
			}
		case name != "unit":
			want[name] = "old"
		}
	}
	if has := m.all(t); !maps.Equal(has, want) {
		t.Errorf("the machine has\n%q\nand should have\n%q", has, want)
	}
}

func TestUpgradeAndBack(t *testing.T) {
	m := newMachine(t, t.TempDir(), "new")
	u := m.open(t)
	must(t, u.Run(t.Context(), m.job(), m))
	m.is(t, "new", true)
	if f, err := u.Last(); err != nil || f == nil || f.To != "v2" {
		t.Errorf("last is %+v, %v", f, err)
	}
	// Later, pods have come since: the old version does not read the new store, and gets the one that it had.
	must(t, u.Rollback(t.Context(), m))
	m.is(t, "old", false)
	if err := u.Rollback(t.Context(), m); !errors.Is(err, ErrNothing) {
		t.Errorf("once more: %v", err)
	}
	must(t, u.Run(t.Context(), m.job(), m))
	must(t, u.Forget())
	m.is(t, "new", false)
	if _, err := os.Stat(m.at("upgrades")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory stays: %v", err)
	}
}

// TestSameFiles: what does not change is not touched.
func TestSameFiles(t *testing.T) {
	m := newMachine(t, t.TempDir(), "new")
	write(t, m.at("release/libexec/helper"), "old")
	must(t, m.open(t).Run(t.Context(), m.job(), m))
	if _, err := os.Stat(m.at("libexec/helper" + Previous)); !errors.Is(err, fs.ErrNotExist) || read(m.at("bin/berth")) != "new" {
		t.Errorf("the machine has %q: %v", m.all(t), err)
	}
}

// TestLateRollbackKeepsStores: an old version that reads the stores of now keeps them, since pods are known by them.
// TestFewerFiles upgrades a second time, with a release that has not all of the files: what the first one kept of them
// goes with its record, whatever comes of the second.
func TestFewerFiles(t *testing.T) {
	for version, want := range map[string]error{"new": nil, "broken": ErrRolledBack} {
		m := newMachine(t, t.TempDir(), "new")
		u := m.open(t)
		must(t, u.Run(t.Context(), m.job(), m))
		j := m.job()
		j.Files = j.Files[len(j.Files)-1:]
		write(t, m.at("release/bin/berth"), version)
		if err := u.Run(t.Context(), j, m); !errors.Is(err, want) {
			t.Errorf("%s: %v", version, err)
		}
		for name := range m.all(t) {
			if strings.HasSuffix(name, Previous) && (want != nil || name != "bin/berth"+Previous) {
				t.Errorf("%s: %s is left", version, name)
			}
		}
		must(t, u.Forget())
		if has := m.all(t); has["bin/berth"] != "new" || has["libexec/helper"] != "new" || has["bin/berth"+Previous] != "" {
			t.Errorf("%s: the machine has %q", version, has)
		}
	}
}

func TestLateRollbackKeepsStores(t *testing.T) {
	m := newMachine(t, t.TempDir(), "new")
	u := m.open(t)
	must(t, u.Run(t.Context(), m.job(), m))
	write(t, m.at("state/store"), "old") // of a format that both have
	write(t, m.at("state/records/two"), "a pod of today")
	must(t, u.Rollback(t.Context(), m))
	if read(m.at("state/records/two")) == "" || read(m.at("bin/berth")) != "old" {
		t.Errorf("the machine has %q", m.all(t))
	}
}

// TestNeverReady: a version that does not come up, and that has written to the stores, is as if it had never been
// there.
func TestNeverReady(t *testing.T) {
	m := newMachine(t, t.TempDir(), "broken")
	u := m.open(t)
	if err := u.Run(t.Context(), m.job(), m); !errors.Is(err, ErrRolledBack) || !strings.Contains(err.Error(), "not ready") {
		t.Errorf("error is %v", err)
	}
	m.is(t, "old", false)
	if f, err := u.UnderWay(); f != nil || err != nil {
		t.Errorf("under way is %+v, %v", f, err)
	}
}

// TestPackage: what a packager has installed goes back the same way.
func TestPackage(t *testing.T) {
	for to, want := range map[string]error{"new": nil, "broken": ErrRolledBack} {
		m := newMachine(t, t.TempDir(), to)
		u := m.open(t)
		j := m.job()
		j.Package, j.Files = m.at("release/bin/berth"), slices.DeleteFunc(j.Files, func(f File) bool { return strings.HasSuffix(f.Path, "unit") })
		if err := u.Run(t.Context(), j, m); !errors.Is(err, want) {
			t.Errorf("%s: %v", to, err)
		}
		if has := read(m.at("running")); has != map[bool]string{true: "new", false: "old"}[want == nil] {
			t.Errorf("%s: %q runs", to, has)
		}
	}
}

// TestPackageBefore: the packager itself brings back what it has replaced, from a package that is kept as long as it
// may be wanted, and one that cannot be installed does not keep the old version from running.
func TestPackageBefore(t *testing.T) {
	for name, c := range map[string]struct {
		to, kept, unit string
		want           error
	}{
		"done": {"new", "old", "new", nil}, "never ready": {"broken", "old", "old", ErrRolledBack},
		"no package": {"broken", "", "broken", ErrRolledBack},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, t.TempDir(), c.to)
			u := m.open(t)
			dir := u.at(PackagesName)
			write(t, filepath.Join(dir, "of an upgrade that was cut off"), "x")
			j := m.job()
			isUnit := func(f File) bool { return strings.HasSuffix(f.Path, "unit") }
			j.Package, j.Files = m.at("release/bin/berth"), slices.DeleteFunc(j.Files, isUnit)
			j.Before = filepath.Join(dir, "old.deb")
			if c.kept != "" {
				write(t, j.Before, c.kept)
			}
			if err := u.Run(t.Context(), j, m); !errors.Is(err, c.want) {
				t.Errorf("error is %v", err)
			}
			if has := read(m.at("unit")); has != c.unit {
				t.Errorf("of the package's other files there is %q", has)
			}
			left, _ := os.ReadDir(dir)
			if kept := c.want == nil; kept != (len(left) == 1) {
				t.Errorf("packages that are kept: %v", left)
			}
			if c.want != nil {
				return
			}
			must(t, u.Rollback(t.Context(), m))
			if running, unit := read(m.at("running")), read(m.at("unit")); running != "old" || unit != "old" {
				t.Errorf("taken back, %q runs by %q", running, unit)
			}
			if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the directory of packages stays: %v", err)
			}
		})
	}
}

// TestPackagerNotCalled: where the packager was not called it is not called on the way back either, as on a full disk.
func TestPackagerNotCalled(t *testing.T) {
	m := newMachine(t, t.TempDir(), "new")
	u := m.open(t)
	j := m.job()
	j.Package, j.Before, j.Stores = m.at("release/bin/berth"), u.at(PackagesName+"/old.deb"), append(j.Stores, m.at("state/store/below a file"))
	write(t, j.Before, "from the packager")
	if err := u.Run(t.Context(), j, m); err == nil {
		t.Error("a store that cannot be is copied")
	}
	if has := read(m.at("bin/berth")); has != "old" {
		t.Errorf("the program is %q", has)
	}
}

// TestStuck: an agent that does not end is left alone.
func TestStuck(t *testing.T) {
	m := newMachine(t, t.TempDir(), "new")
	write(t, m.at("stuck"), "yes")
	u := m.open(t)
	if err := u.Run(t.Context(), m.job(), m); err == nil || !strings.Contains(err.Error(), "does not end") {
		t.Errorf("error is %v", err)
	}
	must(t, os.Remove(m.at("stuck")))
	m.is(t, "old", false)
}

func TestOneAtATime(t *testing.T) {
	m := newMachine(t, t.TempDir(), "new")
	m.open(t)
	if _, err := Open(m.at("upgrades"), nil); err == nil || !strings.Contains(err.Error(), "another one goes on") {
		t.Errorf("error is %v", err)
	}
}

// TestCutOff: an upgrade that goes on is none that was cut off, and one that was is told of for as long as nobody has
// finished it.
func TestCutOff(t *testing.T) {
	m := newMachine(t, t.TempDir(), "new")
	dir := m.at("upgrades")
	if f, err := CutOff(dir); f != nil || err != nil {
		t.Errorf("before the first: %+v, %v", f, err)
	}
	if !m.killed(t, "run", 8) {
		t.Fatal("it was not killed")
	}
	if f, err := CutOff(dir); f == nil || err != nil || f.From != "v1" || f.To != "v2" {
		t.Errorf("killed: %+v, %v", f, err)
	}
	u := m.open(t)
	if f, err := CutOff(dir); f != nil || err != nil {
		t.Errorf("held: %+v, %v", f, err)
	}
	must(t, u.Resume(t.Context(), m))
	u.Close()
	if f, err := CutOff(dir); f != nil || err != nil {
		t.Errorf("finished: %+v, %v", f, err)
	}
}

// TestSuperseded: of an upgrade that was cut off, and after which somebody has installed yet another version, nothing
// is done to what is there now.
func TestSuperseded(t *testing.T) {
	for n := 1; ; n++ {
		m := newMachine(t, t.TempDir(), "new")
		if !m.killed(t, "run", n) {
			break
		}
		u := m.open(t)
		under, err := u.UnderWay()
		must(t, err)
		if under == nil {
			u.Close()
			continue
		}
		if over, err := under.Superseded(""); over || err != nil {
			t.Errorf("cut off before change %d: %t, %v", n, over, err)
		}
		write(t, m.at("bin/berth"), "third")
		over, err := under.Superseded("")
		must(t, err)
		if want := under.State != Preparing && under.State != Done; over != want {
			t.Errorf("cut off before change %d while it was %s: %t", n, under.State, over)
		}
		if over {
			must(t, u.Abandon())
			if has := read(m.at("bin/berth")); has != "third" {
				t.Errorf("the program is %q", has)
			}
			for name := range m.all(t) {
				if strings.HasSuffix(name, Previous) || strings.HasSuffix(name, Staged) {
					t.Errorf("%s is left", name)
				}
			}
			if again, err := u.UnderWay(); again != nil || err != nil {
				t.Errorf("still under way: %+v, %v", again, err)
			}
			if left, _ := os.ReadDir(m.at("upgrades")); len(left) != 1 {
				t.Errorf("of the upgrade there is %v", left)
			}
		}
		u.Close()
	}
}

// TestPackageSuperseded: of a package only its version tells.
func TestPackageSuperseded(t *testing.T) {
	m := newMachine(t, t.TempDir(), "new")
	u := m.open(t)
	r := &record{Job: m.job()}
	r.Package, r.To = m.at("release/bin/berth"), "2.0"
	must(t, r.measure())
	must(t, u.to(r, Swapping))
	under, err := u.UnderWay()
	must(t, err)
	for _, c := range []struct {
		program, packaged string
		want              bool
	}{{"old", "1.0", false}, {"new", "2.0", false}, {"new", "", false}, {"third", "3.0", true}} {
		write(t, m.at("bin/berth"), c.program)
		if over, err := under.Superseded(c.packaged); over != c.want || err != nil {
			t.Errorf("%+v: %t, %v", c, over, err)
		}
	}
}

// TestForgetKeepsOthersOut: who has opened the lock before it was taken away does not hold what the next one makes.
func TestForgetKeepsOthersOut(t *testing.T) {
	m := newMachine(t, t.TempDir(), "new")
	u := m.open(t)
	must(t, u.Forget())
	next := m.open(t)
	u.Close()
	if _, err := Open(m.at("upgrades"), nil); err == nil {
		t.Error("two go on at once")
	}
	next.Close()
}

// TestBadRecord: what cannot be understood is not acted on.
func TestBadRecord(t *testing.T) {
	m := newMachine(t, t.TempDir(), "new")
	u := m.open(t)
	for _, text := range []string{
		"", "{", "[]", `{"version":2}`, `{"version":1,"state":"dancing"}`, `{"version":1,"state":"swapping"}`,
		`{"version":1,"state":"swapping","files":[{"path":"bin/berth"}]}`, `{"version":1,"state":"swapping","files":[{"path":"/a/../b"}]}`,
		`{"version":1,"state":"swapping","files":[{"path":"/a"}],"stores":["x"]}`,
	} {
		write(t, u.at(underWayName), text)
		for what, do := range map[string]func() error{
			"run": func() error { return u.Run(t.Context(), m.job(), m) }, "resume": func() error { return u.Resume(t.Context(), m) },
			"rollback": func() error { return u.Rollback(t.Context(), m) }, "forget": u.Forget,
		} {
			if err := do(); err == nil || !strings.Contains(err.Error(), underWayName) {
				t.Errorf("%s of %q: %v", what, text, err)
			}
		}
	}
	must(t, os.Remove(u.at(underWayName)))
	m.is(t, "old", false)
}

// TestFullDisk has less room than the new version needs: nothing is changed, and the agent is not even stopped.
func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root for a disk of its own")
	}
	dir := t.TempDir()
	if err := unix.Mount("small", dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	m := newMachine(t, dir, "new")
	release := filepath.Join(t.TempDir(), "berth")
	write(t, release, strings.Repeat("x", 1<<20))
	j := m.job()
	j.Files[len(j.Files)-1].From = release
	write(t, m.at("stuck"), "it is not to be stopped")
	u := m.open(t)
	if err := u.Run(t.Context(), j, m); !errors.Is(err, unix.ENOSPC) || errors.Is(err, ErrRolledBack) {
		t.Errorf("error is %v", err)
	}
	must(t, os.Remove(m.at("stuck")))
	m.is(t, "old", false)

	// There is room for the programs, and not for a copy of the stores.
	write(t, m.at("state/store"), "old")
	big := filepath.Join(t.TempDir(), "big")
	write(t, big, strings.Repeat("x", 1<<20))
	j = m.job()
	j.Stores = append(j.Stores, big)
	if err := u.Run(t.Context(), j, m); !errors.Is(err, unix.ENOSPC) || !errors.Is(err, ErrRolledBack) {
		t.Errorf("error is %v", err)
	}
	m.is(t, "old", false)
}

// killedEnv has the process of a test end itself before a change of the disk: what is to be done, which change, and
// where.
const killedEnv = "BERTH_TEST_UPGRADE_KILLED"

// TestKilledChild is the process that TestKilled ends.
func TestKilledChild(t *testing.T) {
	what, at, ok := strings.Cut(os.Getenv(killedEnv), " ")
	if !ok {
		t.Skip("only as the process of another test")
	}
	number, dir, _ := strings.Cut(at, " ")
	n, err := strconv.Atoi(number)
	must(t, err)
	m := machine{dir}
	u := m.open(t)
	u.before = func(string) {
		if n--; n == 0 {
			must(t, syscall.Kill(os.Getpid(), syscall.SIGKILL))
			select {} // until the signal has come
		}
	}
	switch what {
	case "run":
		err = u.Run(t.Context(), m.job(), m)
	case "resume":
		err = u.Resume(t.Context(), m)
	case "rollback":
		err = u.Rollback(t.Context(), m)
	}
	if err != nil && !errors.Is(err, ErrRolledBack) {
		t.Fatal(err)
	}
}

// killed does something in a process that is killed before the nth change of the disk, and says whether it was.
func (m machine) killed(t *testing.T, what string, n int) bool {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestKilledChild$")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d %s", killedEnv, what, n, m.dir))
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL {
		return true
	}
	if err != nil {
		t.Fatalf("%s: %v\n%s", what, err, out)
	}
	return false
}

// whole says that each file is as a whole the old or the new one: whatever has its name can be started.
func (m machine) whole(t *testing.T, to string) {
	t.Helper()
	for _, name := range m.files() {
		if has := read(m.at(name)); has != "old" && has != to && (name != "unit" || has != "") {
			t.Errorf("%s is %q", name, has)
		}
	}
}

// TestKilled ends an upgrade before each change of the disk, and then what is to finish or to undo it, too.
func TestKilled(t *testing.T) {
	for _, to := range []string{"new", "broken"} {
		for _, then := range []string{"resume", "rollback"} {
			t.Run(to+" "+then, func(t *testing.T) {
				t.Parallel()
				changes := 0
				for n := 1; ; n++ {
					m := newMachine(t, t.TempDir(), to)
					if !m.killed(t, "run", n) {
						changes = n - 1
						break
					}
					m.whole(t, to)
					if n%2 == 0 { // and once more
						m.killed(t, then, 1+n/4)
						m.whole(t, to)
					}
					// A boot starts what there is; an old agent makes a pod.
					since := n%3 == 0 && read(m.at("bin/berth")) == "old" && read(m.at("state/store")) == "old"
					if since {
						write(t, m.at("state/records/since"), "a pod")
					}
					m.finished(t, to, then, since)
				}
				if changes < 15 {
					t.Errorf("it was ended before %d changes only", changes)
				}
			})
		}
	}
}

// finished finishes or undoes what was cut off, and holds the machine to it.
func (m machine) finished(t *testing.T, to, then string, since bool) {
	t.Helper()
	u := m.open(t)
	defer u.Close()
	was, err := u.UnderWay()
	must(t, err)
	if then == "resume" {
		err = u.Resume(t.Context(), m)
	} else {
		err = u.Rollback(t.Context(), m)
	}
	if err != nil && !errors.Is(err, ErrRolledBack) && !errors.Is(err, ErrNothing) {
		t.Fatal(err)
	}
	if again, err := u.UnderWay(); again != nil || err != nil {
		t.Errorf("still under way is %+v, %v", again, err)
	}
	if since {
		if err := os.Remove(m.at("state/records/since")); err != nil {
			t.Errorf("what the old version has made since is lost: %v", err)
		}
	}
	done, err := u.Last()
	must(t, err)
	switch {
	case done != nil && to == "new":
		m.is(t, "new", true)
	case then == "resume" && was != nil && was.State == Starting && to == "new":
		t.Error("what could have been finished was undone")
	default:
		m.is(t, "old", false)
	}
}
