package keeper_test

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cri/keeper"
)

// compared is how many specifications are started both ways, at least.
const compared = 320

// TestPlainIsLibcontainers starts containers of all kinds that are ordinary both ways. What the program then has is the
// same, as far as it can be told.
func TestPlainIsLibcontainers(t *testing.T) {
	p := oneProcessor(t)
	p.install("reveal")
	d := &dice{Rand: rand.New(rand.NewPCG(20261127, 1)), t: t, p: p, dir: filepath.Join(p.dir, "volumes")}
	d.volumes()
	n := compared
	if testing.Short() {
		n = 40
	}
	for i := range n {
		if !d.compare(i) {
			t.Fatalf("comparison %d has failed, and those after it are left out", i)
		}
	}
	if d.failed > n/5 {
		t.Errorf("%d of %d starts have failed both ways, and tell little", d.failed, 2*n)
	}
}

// oneProcessor is a pod of an agent that runs on one processor only, which is no matter of its containers.
func oneProcessor(t *testing.T) *pod {
	t.Helper()
	runtime.LockOSThread() // who forks the keeper
	defer runtime.UnlockOSThread()
	var before, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		t.Fatal(err)
	}
	for i := range 1024 {
		if before.IsSet(i) {
			one.Set(i)
			break
		}
	}
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.SchedSetaffinity(0, &before) }()
	return newPod(t)
}

// compare starts one container both ways.
func (d *dice) compare(i int) bool {
	d.t.Helper()
	spec := d.spec("")
	want, _ := d.reveal(i, spec, true)
	got, plain := d.reveal(i, spec, false)
	if !plain {
		return false
	}
	missing, more := differ(want, got)
	if len(missing)+len(more) == 0 {
		return true
	}
	d.t.Errorf("%s\nby libcontainer only:\n%s\nin C only:\n%s", shown(spec), strings.Join(missing, "\n"), strings.Join(more, "\n"))
	return false
}

// stays has the program wait for its end.
const stays = "REVEAL_STAYS=1"

// shown is a specification without what is long.
func shown(spec *specs.Spec) string {
	s, l := *spec, *spec.Linux
	l.Seccomp = nil
	s.Linux = &l
	b, _ := json.Marshal(s)
	return string(b)
}

// reveal starts a container with a root of its own, and returns what there is to be seen.
func (d *dice) reveal(i int, spec *specs.Spec, old bool) (lines []string, plain bool) {
	d.t.Helper()
	root := filepath.Join(d.p.dir, fmt.Sprintf("root%d%t", i, old))
	makeRoot(d.t, root, filepath.Join(d.p.rootfs, "bin/reveal"))
	defer os.RemoveAll(root)
	spec.Root.Path = root
	if scoped() && !slices.Contains(spec.Process.Env, stays) {
		spec.Process.Env = append(spec.Process.Env, stays)
	}
	d.p.old = old
	c := d.p.container(spec)
	c.Stdin = i%2 == 0
	d.t.Cleanup(func() { _ = os.RemoveAll(c.Bundle) })
	plain = true
	if !old && c.Plain == nil {
		d.t.Errorf("not ordinary: %s", shown(spec))
		plain = false
	}
	c.Left = func(why string) {
		d.t.Errorf("left to libcontainer: %s: %s", why, shown(spec))
		plain = false
	}
	if _, err := d.p.Run(d.t.Context(), c); err != nil {
		d.failed++
		return []string{strings.NewReplacer(root, "ROOT", c.ID, "ID").Replace(err.Error())}, plain
	}
	log := d.wholeLog(c)
	lines = append(normal(d.p, log, c.ID, root), d.ended(c.ID, fmt.Sprintf("by libcontainer: %t: %s", old, shown(spec)))...)
	lines = append(lines, tree(d.t, root)...)
	if err := d.p.Forget(c.ID); err != nil {
		d.t.Fatal(err)
	}
	removeGroup(c.ID)
	return lines, plain
}

// ended waits for the end of a container, and tells its settings, of a scope those before.
func (d *dice) ended(id, what string) (lines []string) {
	d.t.Helper()
	want := 0
	if scoped() {
		lines, want = append(settings(id), shownUnit(d.t, id)...), 128+int(unix.SIGKILL)
		if err := d.p.Signal(d.t.Context(), id, unix.SIGKILL); err != nil {
			d.t.Fatal(err)
		}
	}
	if exit := d.p.exit(id); exit.Code != want {
		d.t.Fatalf("the program has ended with %d, %s", exit.Code, what)
	}
	if !scoped() {
		lines = settings(id)
	}
	return lines
}

// wholeLog waits for the last line of the program.
func (d *dice) wholeLog(c keeper.Container) []string {
	d.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		var lines []string
		part := ""
		for _, l := range d.p.log(c.ID) {
			f := strings.SplitN(l, " ", 3)
			part += strings.TrimSuffix(f[2], "\r")
			if f[1] == "F" {
				lines = append(lines, part)
				part = ""
			}
		}
		if len(lines) > 0 && lines[len(lines)-1] == "end" {
			return lines
		}
		if time.Now().After(deadline) {
			d.t.Fatalf("the program has not told all: %q", lines)
		}
	}
}

var (
	volatileLine = regexp.MustCompile(`^/proc/self/status: (Vm|Rss|Hugetlb|voluntary|nonvoluntary|FDSize|SigQ|Ngid)|^/proc/self/coredump`)
	inode        = regexp.MustCompile(`(pipe|socket):\[\d+\]`)
	autogroup    = regexp.MustCompile(`/autogroup-\d+`)
	logTime      = regexp.MustCompile(`^time="[^"]*" `)
	keySerial    = regexp.MustCompile(`^/proc/keys: [0-9a-f]+ (\S+) +\d+ `)
)

// normal leaves out what differs from container to container.
func normal(p *pod, lines []string, id, root string) []string {
	var out, mounts []string
	for _, l := range lines {
		l = strings.ReplaceAll(strings.ReplaceAll(l, root, "ROOT"), groupOf(id), "GROUP")
		l = regexp.MustCompile(`\b_ses\.`+id+`\b`).ReplaceAllString(l, "_ses.ID")
		l = logTime.ReplaceAllString(l, "")
		l = autogroup.ReplaceAllString(inode.ReplaceAllString(l, "$1"), "/autogroup")
		switch {
		case volatileLine.MatchString(l):
		case strings.HasPrefix(l, "/proc/self/mountinfo: ") && len(strings.Fields(l)) > 6:
			f := strings.Fields(l)
			mounts = append(mounts, strings.Join(append([]string{f[5], f[3]}, append(f[4:5:5], f[6:]...)...), " "))
		case strings.HasPrefix(l, "/proc/keys: "):
			if strings.Contains(l, "_ses.ID") {
				out = append(out, keySerial.ReplaceAllString(l, "/proc/keys: $1 "))
			}
		case strings.HasPrefix(l, "/proc/self/ns/"):
			out = append(out, namespace(p, l))
		default:
			out = append(out, l)
		}
	}
	return append(out, numbered(mounts)...)
}

// namespace says whose a namespace is.
func namespace(p *pod, l string) string {
	name, value, _ := strings.Cut(l, " -> ")
	pods, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", p.Pid(), filepath.Base(name)))
	if err != nil {
		return err.Error()
	}
	if value == pods {
		return name + " is the pod's"
	}
	return name + " is its own"
}

// numbered sorts mounts by their places, those at one place in their order, and numbers the devices as they come.
func numbered(mounts []string) []string {
	slices.SortStableFunc(mounts, func(a, b string) int {
		pa, _, _ := strings.Cut(a, " ")
		pb, _, _ := strings.Cut(b, " ")
		return strings.Compare(pa, pb)
	})
	device := map[string]int{}
	for i, m := range mounts {
		f := strings.SplitN(m, " ", 3)
		if _, ok := device[f[1]]; !ok {
			device[f[1]] = len(device)
		}
		mounts[i] = fmt.Sprintf("mount %d of %s: device %d %s", i, f[0], device[f[1]], f[2])
	}
	return mounts
}

// tree is what of a root there is afterwards: the places of mounts have been made.
func tree(t testing.TB, root string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil {
			out = append(out, fmt.Sprintf("made: %s %s", strings.TrimPrefix(path, root), info.Mode()))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// differ says what only one of two lists has.
func differ(a, b []string) (onlyA, onlyB []string) {
	count := map[string]int{}
	for _, l := range a {
		count[l]++
	}
	for _, l := range b {
		if count[l]--; count[l] < 0 {
			onlyB = append(onlyB, l)
		}
	}
	for _, l := range a {
		if count[l] > 0 {
			count[l]--
			onlyA = append(onlyA, l)
		}
	}
	return onlyA, onlyB
}
