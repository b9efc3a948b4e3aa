package keeper_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cri/keeper"
)

func sendSignal(t testing.TB, pid int, sig unix.Signal) {
	t.Helper()
	if err := unix.Kill(pid, sig); err != nil {
		t.Fatal(err)
	}
}

// TestStoppedKeeper asks a stopped keeper everything there is to ask: each question ends, and none takes it for dead.
func TestStoppedKeeper(t *testing.T) {
	p := newPod(t)
	id, pid := p.sh("sleep 5001")
	stopped := p.Pid()
	keeper.AnswerWithin(t, 200*time.Millisecond)
	sendSignal(t, stopped, unix.SIGSTOP)
	defer func() { _ = unix.Kill(stopped, unix.SIGCONT) }()
	ctx := t.Context()
	for name, ask := range map[string]func() error{
		"open":    func() error { _, err := keeper.Open(ctx, "pod", p.Dir()); return err },
		"run":     func() error { _, err := p.Run(ctx, p.container(p.spec("c", "/bin/true"))); return err },
		"signal":  func() error { return p.Signal(ctx, id, unix.SIGKILL) },
		"reopen":  func() error { return p.ReopenLog(id) },
		"resize":  func() error { return p.Resize(id, 1, 1) },
		"attach":  func() error { _, err := p.Attach(ctx, id); return err },
		"watch":   func() error { return p.Watch(ctx, func(keeper.Exit) {}) },
		"exec":    func() error { _, _, err := p.execIn(id, pid, nil, "true"); return err },
		"capture": func() error { p.capture = true; _, _, err := p.execIn(id, pid, nil, "true"); return err },
	} {
		if err := ask(); !errors.Is(err, keeper.ErrSilent) || errors.Is(err, keeper.ErrGone) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A command that is given up is not to blame for the silence, unless it was before anybody was asked.
	e := keeper.Exec{ContainerID: id, Pid: pid, Process: p.spec(id, "true").Process}
	var err error
	for limit := 50 * time.Millisecond; limit <= 150*time.Millisecond; limit += 50 * time.Millisecond {
		limited, cancel := context.WithTimeout(ctx, limit)
		_, err = p.Capture(limited, e, io.Discard, io.Discard)
		cancel()
		if errors.Is(err, keeper.ErrSilent) {
			break
		}
	}
	if !errors.Is(err, keeper.ErrSilent) {
		t.Errorf("a command that was given up: %v", err)
	}
	// What it is not needed for works: its containers can be ended, and it is found when it goes on.
	if err := keeper.Signal(p.Dir(), id, unix.SIGKILL); err != nil {
		t.Error(err)
	}
	if err := keeper.AwaitEnd(ctx, p.Dir(), id); err != nil {
		t.Error(err)
	}
	if err := keeper.Signal(p.Dir(), id, unix.SIGKILL); !errors.Is(err, keeper.ErrNotFound) {
		t.Errorf("signal to a process that has ended: %v", err)
	}
	keeper.AnswerWithin(t, time.Minute) // it answers now, as soon as it can
	found := make(chan error, 1)
	go func() {
		k, err := keeper.Await(ctx, "pod", p.Dir())
		if err == nil && k.Pid() != stopped {
			err = errors.New("another was found")
		}
		found <- err
	}()
	sendSignal(t, stopped, unix.SIGCONT)
	if err := <-found; err != nil {
		t.Error(err)
	}
	if e := p.exit(id); e.Signal != int(unix.SIGKILL) {
		t.Errorf("exit is %+v", e)
	}
}

// TestStopOfAStoppedKeeper ends one that cannot be talked to.
func TestStopOfAStoppedKeeper(t *testing.T) {
	p := newPod(t)
	p.sh("sleep 5002")
	keeper.AnswerWithin(t, 200*time.Millisecond)
	sendSignal(t, p.Pid(), unix.SIGSTOP)
	if err := p.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if left := processes("sleep\x005002"); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestFullQueue fills the queue of connections of a keeper that takes none from it.
func TestFullQueue(t *testing.T) {
	p := newPod(t)
	stopped := p.Pid()
	keeper.AnswerWithin(t, 200*time.Millisecond)
	sendSignal(t, stopped, unix.SIGSTOP)
	defer func() { _ = unix.Kill(stopped, unix.SIGCONT) }()
	d, err := os.Open(p.Dir())
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	var conns []net.Conn
	for {
		c, err := (&net.Dialer{}).DialContext(t.Context(), "unixpacket", filepath.Join("/proc/self/fd", strconv.Itoa(int(d.Fd())), "keeper.sock"))
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	if _, err := keeper.Open(t.Context(), "pod", p.Dir()); !errors.Is(err, keeper.ErrSilent) {
		t.Errorf("open: %v", err)
	}
	for _, c := range conns {
		c.Close()
	}
	keeper.AnswerWithin(t, time.Minute)
	sendSignal(t, stopped, unix.SIGCONT)
	if _, err := keeper.Await(t.Context(), "pod", p.Dir()); err != nil {
		t.Error(err)
	}
}

// TestDamagedKeeperFiles finds a live keeper whatever became of its files, and ends it.
func TestDamagedKeeperFiles(t *testing.T) {
	p := newPod(t)
	p.sh("sleep 5003")
	path := filepath.Join(p.Dir(), "keeper.pid")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	flipped := bytes.Clone(whole)
	flipped[0] ^= 1
	for _, text := range [][]byte{nil, whole[:len(whole)/2], flipped, []byte("x y z\n"), bytes.Repeat([]byte{0xff}, 100)} {
		write(t, path, string(text), 0o600)
		k, err := keeper.Open(t.Context(), "pod", p.Dir())
		if err != nil || k.Pid() != p.Pid() {
			t.Errorf("with %q: %v", text, err)
		}
	}
	write(t, path, string(whole), 0o600)
	// Without its socket it lives, and listens again, also when its file is damaged, too.
	write(t, path, "", 0o600)
	sock := filepath.Join(p.Dir(), "keeper.sock")
	if err := os.Rename(sock, sock+".away"); err != nil {
		t.Fatal(err)
	}
	if k, err := keeper.Open(t.Context(), "pod", p.Dir()); err != nil || k.Pid() != p.Pid() {
		t.Errorf("open without a socket: %v", err)
	}
	if err := keeper.Kill(p.Dir()); err != nil {
		t.Error(err)
	}
	if left := processes("sleep\x005003"); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestDamagedRecords has one record of a container that says nothing. The others are read, and the keeper is watched.
func TestDamagedRecords(t *testing.T) {
	p := newPod(t)
	lost, _ := p.sh("exit 3")
	good, _ := p.sh("exit 4")
	p.exit(lost)
	p.exit(good)
	for _, text := range []string{"", "1 2", "9 x y z", "\xff\xff"} {
		write(t, filepath.Join(p.Dir(), "exit", lost), text, 0o600)
		exits, err := keeper.ReadExits(p.Dir())
		code := map[string]int{}
		for _, e := range exits {
			code[e.ContainerID] = e.Code
		}
		if err == nil || len(code) != 2 || code[lost] != 255 || code[good] != 4 {
			t.Errorf("with %q: %v, %v", text, code, err)
		}
		if e := p.exit(good); e.Code != 4 {
			t.Errorf("watch tells %+v", e)
		}
	}
	// One of a container that runs is not believed.
	live, _ := p.sh("sleep 5004")
	write(t, filepath.Join(p.Dir(), "exit", live), "", 0o600)
	exits, err := keeper.ReadExits(p.Dir())
	if err == nil {
		t.Error("a damaged record is no error")
	}
	for _, e := range exits {
		if e.ContainerID == live {
			t.Errorf("a container that runs has exited: %+v", e)
		}
	}
	write(t, filepath.Join(p.Dir(), "c", live), "?", 0o600)
	if err := keeper.Kill(p.Dir()); err != nil {
		t.Error(err)
	}
}

// TestNoFilesLeft has this process at its limit of open files: a keeper that cannot be asked for that is not gone.
func TestNoFilesLeft(t *testing.T) {
	p := newPod(t)
	var had unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &had); err != nil {
		t.Fatal(err)
	}
	watched := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	low := had
	low.Cur = 1
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	_, err := keeper.Open(ctx, "pod", p.Dir())
	go func() { watched <- p.Watch(ctx, func(keeper.Exit) {}) }()
	werr := <-watched
	if err2 := unix.Setrlimit(unix.RLIMIT_NOFILE, &had); err2 != nil {
		t.Fatal(err2)
	}
	if err == nil || errors.Is(err, keeper.ErrGone) {
		t.Errorf("open: %v", err)
	}
	if werr == nil || errors.Is(werr, keeper.ErrGone) {
		t.Errorf("watch: %v", werr)
	}
	if _, err := keeper.Open(ctx, "pod", p.Dir()); err != nil {
		t.Error(err)
	}
}

// TestHelperIsShared opens the helper again while a keeper executes it: it is the same memory, and starts keepers as
// before.
func TestHelperIsShared(t *testing.T) {
	p := newPod(t)
	path, err := helperBinary()
	if err != nil {
		t.Fatal(err)
	}
	inode := func(f *os.File) uint64 {
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err != nil {
			t.Fatal(err)
		}
		return st.Ino
	}
	shared, err := keeper.OpenHelper(path, t.TempDir(), p.Dir())
	if err != nil {
		t.Fatal(err)
	}
	defer shared.Close()
	if inode(shared) != inode(p.config.Helper) {
		t.Error("the helper was copied again")
	}
	second := newPod(t, func(c *keeper.Config) { c.Helper = shared })
	if id, _ := second.sh("exit 6"); second.exit(id).Code != 6 {
		t.Error("it does not run containers")
	}
	// One of another version is not taken.
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(t.TempDir(), "helper")
	b[len(b)-1] ^= 1
	write(t, other, string(b), 0o755)
	f, err := keeper.OpenHelper(other, p.Dir())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if inode(f) == inode(p.config.Helper) {
		t.Error("another binary was taken for the helper")
	}
}
