package pressure

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cgroups/internal/kernfs"
)

// childGroup has the process join a group and do what its standard input says.
const childGroup = "BERTH_PRESSURE_TEST_GROUP"

func TestMain(m *testing.M) {
	if group := os.Getenv(childGroup); group != "" {
		if err := child(group); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// child allocates as many bytes as each line says, for as long as it lives, and answers each.
func child(group string) error {
	if err := kernfs.Write(group, "cgroup.procs", "0"); err != nil {
		return err
	}
	fmt.Println("ready")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); fmt.Println("done") {
		n, err := strconv.Atoi(in.Text())
		if err != nil {
			return err
		}
		if _, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE); err != nil {
			return err
		}
	}
	return nil
}

// allocator is a process in a group, which takes memory when it is told to.
type allocator struct {
	in  io.Writer
	out *bufio.Reader
}

func newAllocator(t *testing.T, group string) *allocator {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childGroup+"="+group)
	cmd.Stderr = os.Stderr
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	a := &allocator{in: in, out: bufio.NewReader(out)}
	a.answer(t, "ready\n")
	return a
}

func (a *allocator) take(t *testing.T, bytes int) {
	t.Helper()
	if _, err := fmt.Fprintln(a.in, bytes); err != nil {
		t.Fatal(err)
	}
	a.answer(t, "done\n")
}

func (a *allocator) answer(t *testing.T, want string) {
	t.Helper()
	if got, err := a.out.ReadString('\n'); err != nil || got != want {
		t.Fatalf("allocator says %q, %v", got, err)
	}
}

func unified() bool { return kernfs.Exists("/sys/fs/cgroup/cgroup.controllers") }

// newGroup makes a group below a root of this test's own: in the hierarchy of the controller on v1.
func newGroup(t *testing.T, controller string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes control groups")
	}
	top := "/sys/fs/cgroup"
	if !unified() {
		top += "/" + controller
	}
	if !kernfs.Exists(top + "/cgroup.procs") {
		t.Skipf("needs the cgroup hierarchy %s", top)
	}
	root := fmt.Sprintf("%s/berth-pressure-test-%d", top, os.Getpid())
	group := root + "/" + strings.ReplaceAll(t.Name(), "/", "_")
	enable := func(dir string) {
		if !unified() {
			return
		}
		if err := kernfs.Write(dir, "cgroup.subtree_control", "+memory +pids"); err != nil {
			t.Fatal(err)
		}
	}
	enable(top)
	if err := os.Mkdir(root, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeGroup(t, root) })
	enable(root)
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeGroup(t, group) })
	return group
}

// removeGroup waits for those that were killed to be gone.
func removeGroup(t *testing.T, dir string) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		err := unix.Rmdir(dir)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("remove %s: %v", dir, err)
			return
		}
	}
}

func newWatcher(t *testing.T) *Watcher {
	t.Helper()
	w, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// await waits for an event; open is what it says of the channel.
func await(t *testing.T, events <-chan struct{}, open bool) {
	t.Helper()
	for {
		select {
		case _, ok := <-events:
			if ok == open {
				return
			}
			if !ok {
				t.Fatal("the source has ended")
			}
		case <-time.After(2 * time.Minute):
			t.Fatalf("no event (wanted one with the channel open: %v)", open)
		}
	}
}

const mib = 1 << 20

func needsV1(t *testing.T) {
	t.Helper()
	if unified() {
		t.Skip("needs cgroup v1")
	}
}

func TestUsage(t *testing.T) {
	needsV1(t)
	group := newGroup(t, "memory")
	w := newWatcher(t)
	u, err := w.Usage(group)
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	a := newAllocator(t, group)
	usage := func() int64 {
		n, err := readBytes(group + "/memory.usage_in_bytes")
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := usage()
	if err := u.Set([]int64{64 * mib, 16 * mib, -1, 0}); err != nil {
		t.Fatal(err)
	}
	for i, mark := range []int64{16 * mib, 64 * mib} {
		a.take(t, 4*mib)
		select {
		case <-u.Events():
			if got := usage() - before; got < mark-mib {
				t.Errorf("told at %d bytes, mark %d is at %d", got, i, mark)
			}
		default:
		}
		a.take(t, int(mark))
		await(t, u.Events(), true)
	}
	before = usage()
	if err := u.Set([]int64{8 * mib}); err != nil {
		t.Fatal(err)
	}
	a.take(t, 16*mib)
	await(t, u.Events(), true)
	if got := usage() - before; got < 7*mib {
		t.Errorf("told at %d bytes more", got)
	}
	w.mu.Lock()
	watches := len(w.watches)
	w.mu.Unlock()
	if watches != 1 {
		t.Errorf("%d watches of marks, of which only the last count", watches)
	}
	u.Close()
	if err := u.Set([]int64{mib}); err == nil {
		t.Error("marks can be set after Close")
	}
}

// TestUsageOfRoot: the kernel tells of the root group too, which has no limit and whose usage is that of the machine.
func TestUsageOfRoot(t *testing.T) {
	needsV1(t)
	group := newGroup(t, "memory")
	u, err := newWatcher(t).Usage("/sys/fs/cgroup/memory")
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	a := newAllocator(t, group)
	for range 12 { // others may give back meanwhile what this takes
		if err := u.Set([]int64{64 * mib}); err != nil {
			t.Fatal(err)
		}
		a.take(t, 96*mib)
		if told(u.Events()) {
			return
		}
	}
	t.Error("nothing is told")
}

// told says whether there is an event before long. On a machine whose memory others take and give back there may be
// none, and another try is due.
func told(events <-chan struct{}) bool {
	select {
	case <-events:
		return true
	case <-time.After(3 * time.Second):
		return false
	}
}

func TestLevel(t *testing.T) {
	needsV1(t)
	group := newGroup(t, "memory")
	if err := kernfs.Write(group, "memory.limit_in_bytes", strconv.Itoa(32*mib)); err != nil {
		t.Fatal(err)
	}
	w := newWatcher(t)
	source, err1 := w.Level(group, Low)
	above, err2 := w.Level(filepath.Dir(group), Low) // the group itself is told, and does not keep it to itself
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	newGroupCache(t, group, 128*mib)
	await(t, source.Events(), true)
	await(t, above.Events(), true)
	source.Close()
	await(t, source.Events(), false)
}

// newGroupCache has a process of the group write a file, which is in its page cache then. Each block is on the disk
// before the next one: what is not, the kernel cannot take back, and kills for it where the disk is busy.
func newGroupCache(t *testing.T, group string, bytes int) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "file")
	script := fmt.Sprintf("echo $$ > %s/cgroup.procs && dd if=/dev/zero of=%s bs=1M count=%d oflag=dsync", group, file, bytes/mib)
	if out, err := exec.CommandContext(t.Context(), "/bin/sh", "-ec", script).CombinedOutput(); err != nil {
		t.Fatalf("write a file: %v\n%s", err, out)
	}
}

// busy has more processes than there are processors, until the test ends.
func busy(t *testing.T, join string) {
	t.Helper()
	for range 2 * runtime.NumCPU() {
		cmd := exec.Command("/bin/sh", "-ec", join+"while :; do :; done")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	}
}

func TestPSI(t *testing.T) {
	source, err := newWatcher(t).PSI("/proc/pressure/cpu", Trigger{Stall: 20 * time.Millisecond, Window: 500 * time.Millisecond})
	if errors.Is(err, ErrUnsupported) || errors.Is(err, unix.EPERM) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	busy(t, "")
	await(t, source.Events(), true)
	await(t, source.Events(), true) // and again in another window
	source.Close()
	await(t, source.Events(), false)
}

// TestPSIOfGroup: where the v2 hierarchy is beside those of v1, its groups have pressure as well.
func TestPSIOfGroup(t *testing.T) {
	controller := "unified"
	if unified() {
		controller = "cpu"
	} else if !kernfs.Exists("/sys/fs/cgroup/unified/cpu.pressure") {
		t.Skip("needs groups with pressure")
	}
	group := newGroup(t, controller)
	w := newWatcher(t)
	source, err := w.PSI(group+"/cpu.pressure", Trigger{Stall: 20 * time.Millisecond, Window: 500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Run("busy", func(t *testing.T) {
		busy(t, fmt.Sprintf("echo $$ > %s/cgroup.procs\n", group))
		await(t, source.Events(), true)
	})
	removeGroup(t, group)
	await(t, source.Events(), false)
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.watches) != 0 {
		t.Errorf("%d watches of a group that is gone", len(w.watches))
	}
}

func TestCountersOfPids(t *testing.T) {
	group := newGroup(t, "pids")
	if err := kernfs.Write(group, "pids.max", "2"); err != nil {
		t.Fatal(err)
	}
	c, err := newWatcher(t).Counters(group + "/pids.events")
	if err != nil {
		t.Fatal(err)
	}
	probe, err := unix.Open(group+"/pids.events", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(probe)
	if _, err := kernfs.Pread(probe, make([]byte, 64)); err != nil {
		t.Fatal(err)
	}
	for want := uint64(1); want < 3; want++ {
		script := fmt.Sprintf("echo $$ > %s/cgroup.procs; /bin/true & /bin/true & /bin/true", group)
		_ = exec.CommandContext(t.Context(), "/bin/sh", "-c", script).Run() // it cannot fork
		if told, err := unix.Poll([]unix.PollFd{{Fd: int32(probe), Events: unix.POLLPRI}}, 0); err != nil || told == 0 && !unified() {
			t.Skipf("this kernel does not tell of pids.events on v1 (%v)", err)
		}
		await(t, c.Events(), true)
		if n := limited(t, group+"/pids.events"); n < want {
			t.Fatalf("the limit was hit %d times, want at least %d", n, want)
		}
	}
	removeGroup(t, group)
	c.Close()
	await(t, c.Events(), false)
	c.Close()
}

// limited is how often a limit was hit, by a file of counters.
func limited(t *testing.T, file string) (n uint64) {
	t.Helper()
	text, err := kernfs.ReadString(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(text) {
		if _, err := fmt.Sscanf(line, "max %d", &n); err == nil {
			return n
		}
	}
	t.Fatalf("%s: no limit in %q", file, text)
	return 0
}

func TestCountersOfMemory(t *testing.T) {
	if !unified() {
		t.Skip("needs cgroup v2")
	}
	group := newGroup(t, "memory")
	if err := kernfs.Write(group, "memory.max", strconv.Itoa(32*mib)); err != nil {
		t.Fatal(err)
	}
	c, err := newWatcher(t).Counters(group + "/memory.events")
	if err != nil {
		t.Fatal(err)
	}
	newGroupCache(t, group, 128*mib)
	await(t, c.Events(), true)
	if limited(t, group+"/memory.events") == 0 {
		t.Error("the limit was not hit")
	}
	c.Close()
	await(t, c.Events(), false)
}

func TestGrowth(t *testing.T) {
	if !unified() {
		t.Skip("needs cgroup v2")
	}
	group := newGroup(t, "memory")
	w := newWatcher(t)
	g, err := w.GroupGrowth(group, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	newGroupCache(t, group, 64*mib)
	a := newAllocator(t, group)
	if err := g.Set([]int64{128 * mib, 16 * mib}); err != nil {
		t.Fatal(err)
	}
	for _, take := range []int{24 * mib, 128 * mib} {
		a.take(t, take)
		await(t, g.Events(), true)
	}
	if high, err := kernfs.ReadString(group + "/memory.high"); err != nil || high != "max" {
		t.Errorf("memory.high is %s, %v", high, err)
	}
	g.Close()
	g.Close()
	await(t, g.Events(), false)
	if err := g.Set([]int64{mib}); err == nil {
		t.Error("marks can be set after Close")
	}
	again, err := w.GroupGrowth(group, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(again.Set([]int64{64 * mib}), w.Close()); err != nil {
		t.Error(err)
	}
	await(t, again.Events(), false)
}

// TestGrowthOfAmount has no kernel's figures, and so none that move by themselves.
func TestGrowthOfAmount(t *testing.T) {
	w := newWatcher(t)
	var amount, reads atomic.Int64
	read := make(chan struct{}, 1)
	fail := errors.New("the group is gone")
	var gone atomic.Bool
	g, err := w.growth(1<<30, func() (int64, error) {
		reads.Add(1)
		tell(read)
		if gone.Load() {
			return 0, fail
		}
		return amount.Load(), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Set([]int64{16 * mib, 32 * mib, 64 * mib, 0, -5}); err != nil {
		t.Fatal(err)
	}
	amount.Store(40 * mib) // two are passed at once
	await(t, g.Events(), true)
	amount.Store(0) // and are not passed again
	for range 3 {
		await(t, read, true)
	}
	if n := len(g.Events()); n != 0 {
		t.Error("a mark that was passed tells again")
	}
	amount.Store(80 * mib)
	await(t, g.Events(), true)
	before := reads.Load()
	if g.mu.Lock(); len(g.marks) != 0 {
		t.Errorf("%d marks are left", len(g.marks))
	}
	var spec unix.ItimerSpec
	if err := unix.TimerfdGettime(g.timer, &spec); err != nil || spec.Value != (unix.Timespec{}) {
		t.Errorf("the timer runs without a mark: %+v, %v, after %d readings", spec, err, before)
	}
	g.mu.Unlock()
	if err := g.Set([]int64{mib}); err != nil {
		t.Fatal(err)
	}
	gone.Store(true)
	await(t, g.Events(), false)
	if err := g.Set([]int64{mib}); err == nil {
		t.Error("marks can be set of what is gone")
	}
}

func TestGrowthPace(t *testing.T) {
	g := &Growth{rate: 2 << 30}
	for left, want := range map[int64]time.Duration{
		-1: shortest, 0: shortest, mib: shortest, 1 << 30: 500 * time.Millisecond, 4 << 30: 2 * time.Second, 1 << 50: longest,
		noMark: longest,
	} {
		if got := g.until(left); got != want {
			t.Errorf("%d bytes left: %v, want %v", left, got, want)
		}
	}
}

func TestGrowthOfMachine(t *testing.T) {
	w := newWatcher(t)
	g, err := w.MachineGrowth(1 << 30)
	if err != nil {
		t.Fatal(err)
	}
	available, err := memAvailable()
	if err != nil || available <= 0 {
		t.Fatalf("%d bytes are available, %v", available, err)
	}
	for range 12 { // others may give back meanwhile what this takes
		if err := g.Set([]int64{1, available * 2}); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.Mmap(-1, 0, 32*mib, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE); err != nil {
			t.Fatal(err)
		}
		if told(g.Events()) {
			return
		}
	}
	t.Error("nothing is told")
}

// TestUnmark: what an older agent has left does not slow down anybody for longer.
func TestUnmark(t *testing.T) {
	if !unified() {
		t.Skip("needs cgroup v2")
	}
	group := newGroup(t, "memory")
	if err := kernfs.Write(group, "memory.high", "4096"); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"4096", ""} {
		if was, err := Unmark(group); err != nil || was != want {
			t.Errorf("memory.high was %q, %v; want %q", was, err, want)
		}
	}
	if high, err := kernfs.ReadString(group + "/memory.high"); err != nil || high != "max" {
		t.Errorf("memory.high is %s, %v", high, err)
	}
}

func TestUnsupported(t *testing.T) {
	w := newWatcher(t)
	dir := t.TempDir()
	trigger := Trigger{Stall: time.Millisecond, Window: time.Second}
	_, psi := w.PSI(dir+"/memory.pressure", trigger)
	_, level := w.Level(dir, Low)
	_, usage := w.Usage(dir)
	_, counters := w.Counters(dir + "/memory.events")
	_, growth := w.GroupGrowth(dir, 1)
	_, high := Unmark(dir)
	for what, err := range map[string]error{"psi": psi, "level": level, "usage": usage, "counters": counters, "growth": growth, "high": high} {
		if !errors.Is(err, ErrUnsupported) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, bad := range []Trigger{
		{Stall: time.Millisecond, Window: 499 * time.Millisecond},
		{Stall: time.Millisecond, Window: 10001 * time.Millisecond},
		{Stall: 1001 * time.Millisecond, Window: time.Second},
		{Window: time.Second},
	} {
		if _, err := w.PSI("/proc/pressure/memory", bad); err == nil || errors.Is(err, ErrUnsupported) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	// A file that is no source of the kernel's.
	if err := os.WriteFile(dir+"/memory.events", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Counters(dir + "/memory.events"); err == nil {
		t.Error("a plain file tells of changes")
	}
}

func TestClose(t *testing.T) {
	w := newWatcher(t)
	source := func() (*Source, error) {
		fd, err := eventfd()
		if err != nil {
			t.Fatal(err)
		}
		return w.source(fd, unix.EPOLLIN, func(uint32) (news, more bool) { return drain(fd) > 0, true })
	}
	one, err := source()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Close(), w.Close()); err != nil {
		t.Error(err)
	}
	await(t, one.Events(), false)
	one.Close()
	late, err := source()
	if !errors.Is(err, os.ErrClosed) {
		t.Errorf("a source of a watcher that is closed: %v", err)
	}
	await(t, late.Events(), false)
}
