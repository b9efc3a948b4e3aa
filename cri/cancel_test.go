package cri

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cni/netnstest"
	"github.com/berth-node/berth/cri/sandbox"
)

// adopt makes this process the parent of what its children leave behind, so that nothing of theirs can be overlooked.
func adopt(t *testing.T) {
	t.Helper()
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0); err != nil {
			t.Error(err)
		}
		reapOrphans()
	})
}

// reapOrphans takes the zombies that adopt has brought. Those of keepers are the server's.
func reapOrphans() {
	for _, pid := range childrenOf(os.Getpid()) {
		stat, _ := os.ReadFile(filepath.Join("/proc", itoa(pid), "stat"))
		if bytes.Contains(stat, []byte(") Z ")) {
			var ws unix.WaitStatus
			_, _ = unix.Wait4(pid, &ws, unix.WNOHANG, nil)
		}
	}
}

func childrenOf(pid int) []int {
	var out []int
	files, _ := filepath.Glob("/proc/" + itoa(pid) + "/task/*/children")
	for _, f := range files {
		b, _ := os.ReadFile(f)
		for s := range strings.FieldsSeq(string(b)) {
			if n, err := strconv.Atoi(s); err == nil {
				out = append(out, n)
			}
		}
	}
	return out
}

// alive lists what descends from this process and has not ended.
func alive() []string {
	var out []string
	var walk func(pid int)
	walk = func(pid int) {
		for _, c := range childrenOf(pid) {
			stat, err := os.ReadFile(filepath.Join("/proc", itoa(c), "stat"))
			if err != nil || ending(stat) {
				continue
			}
			cmd, _ := os.ReadFile(filepath.Join("/proc", itoa(c), "cmdline"))
			out = append(out, fmt.Sprintf("%d %q", c, cmd))
			walk(c)
		}
	}
	walk(os.Getpid())
	return out
}

// ending says whether a process has ended, or is past the point from which on it runs no code of its own (PF_EXITING):
// the kernel takes a while from there to a zombie.
func ending(stat []byte) bool {
	_, rest, _ := bytes.Cut(stat, []byte(") ")) // state ppid pgrp session tty tpgid flags
	fields := strings.Fields(string(rest))
	if len(fields) < 7 {
		return true
	}
	flags, err := strconv.ParseUint(fields[6], 10, 32)
	return err != nil || fields[0] == "Z" || flags&0x4 != 0
}

// addresses lists those that are handed out.
func (n *node) addresses(t testing.TB) []string {
	t.Helper()
	var out []string
	all, err := filepath.Glob(filepath.Join(n.core.host.Paths.IPAM(), n.cfg.BridgeName, "*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		if to, err := os.Readlink(path); err == nil {
			out = append(out, filepath.Base(path)+" "+to)
		}
	}
	return out
}

// sharing is a pod whose containers share a PID namespace, with ids of its own or the host's.
func (n *node) sharing(name string, user bool) *runtimeapi.PodSandboxConfig {
	cfg := n.podConfig(name)
	opts := &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_POD}
	if user {
		opts.UsernsOptions = ownIDs(65536)
	}
	cfg.Linux.SecurityContext = &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: opts}
	return cfg
}

// checkNothing fails if anything of a pod is there: no process, since a process has its network, and then no address.
func (n *node) checkNothing(t *testing.T, when string) {
	t.Helper()
	if left := alive(); len(left) > 0 {
		t.Errorf("%s: processes are left: %s", when, left)
	}
	if left := n.addresses(t); len(left) > 0 {
		t.Errorf("%s: addresses are left: %s", when, left)
	}
	if left := n.leaks(t); len(left) > 0 {
		t.Errorf("%s: left behind: %q", when, left)
	}
	if t.Failed() {
		for _, p := range alive() {
			pid, _ := strconv.Atoi(strings.Fields(p)[0])
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		t.FailNow()
	}
}

// TestSandboxGivenUp ends calls of RunPodSandbox at every moment of them. What the call has begun is gone when it
// returns.
func TestSandboxGivenUp(t *testing.T) {
	n := usernsNode(t)
	adopt(t)
	rounds := 60
	if testing.Short() {
		rounds = 20
	}
	cut := 0
	for i := range rounds {
		cfg := n.sharing(fmt.Sprintf("p%d", i), i%2 == 1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*500*time.Microsecond)
		r, err := n.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: cfg})
		cancel()
		if err != nil {
			cut++
		} else if err := removePod(t, n.Server, r.PodSandboxId); err != nil {
			t.Fatal(err)
		}
		n.checkNothing(t, fmt.Sprintf("round %d, %v", i, err))
		reapOrphans()
	}
	if cut == 0 {
		t.Error("no call was ended by its deadline")
	}
}

// TestKeeperKilledAtAnyMoment kills keepers while they start and after. Nothing of theirs outlives them, in whatever
// state they were, and their address is nobody else's before.
func TestKeeperKilledAtAnyMoment(t *testing.T) {
	n := usernsNode(t)
	adopt(t)
	rounds := 60
	if testing.Short() {
		rounds = 20
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	for i := range rounds {
		after := time.Duration(rnd.IntN(12000)) * time.Microsecond
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				for _, pid := range childrenOf(os.Getpid()) {
					b, _ := os.ReadFile(filepath.Join("/proc", itoa(pid), "cmdline"))
					if bytes.HasPrefix(b, []byte("berth-keeper\x00")) {
						time.Sleep(after)
						// Nobody reaps it but the server, and that only once it has ended.
						_ = unix.Kill(pid, unix.SIGKILL)
						return
					}
				}
			}
		}()
		cfg := n.sharing(fmt.Sprintf("k%d", i), i%2 == 1)
		r, err := n.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: cfg})
		<-done
		if err == nil {
			if err := removePod(t, n.Server, r.PodSandboxId); err != nil {
				t.Fatal(err)
			}
		}
		n.checkNothing(t, fmt.Sprintf("round %d, killed after %v, %v", i, after, err))
		reapOrphans()
	}
}

// TestStaysInItsNetwork has a process stay in the network namespace of a pod whose keeper was killed. As long as it is
// there the address is the pod's, and both a stop and a new start end it first.
func TestStaysInItsNetwork(t *testing.T) {
	n := usernsNode(t)
	for _, how := range []string{"stop", "start", "lost records"} {
		t.Run(how, func(t *testing.T) {
			adopt(t)
			r, err := n.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: n.sharing("stays", false)})
			if err != nil {
				t.Fatal(err)
			}
			sb, err := n.core.pods.Table.ByID.Get(r.PodSandboxId)
			if err != nil {
				t.Fatal(err)
			}
			stray := netnstest.Start(t, sb.Record().NetNS)
			k, err := sb.Live()
			if err != nil {
				t.Fatal(err)
			}
			kill(t, k.Pid())
			eventually(t, func() bool { return sb.State() == sandbox.NotReady })
			if got := n.addresses(t); len(got) != 1 {
				t.Errorf("the address is free: %q", got)
			}
			if stray.Ended() {
				t.Error("the process was ended by nobody's doing")
			}
			switch how {
			case "stop":
				err = removePod(t, n.Server, r.PodSandboxId)
			case "lost records":
				err = n.core.pods.Table.Drop(sb)
				fallthrough
			case "start":
				if err == nil {
					err = n.Close()
				}
				n.open(t)
				if how == "start" && err == nil {
					if got := n.addresses(t); len(got) != 0 {
						t.Errorf("after the start there is %q", got)
					}
					err = removePod(t, n.Server, r.PodSandboxId)
				}
			}
			if err != nil {
				t.Error(err)
			}
			if !stray.Ended() {
				t.Error("the process is still in the network of the pod that is gone")
			}
			n.checkNothing(t, how)
			reapOrphans()
		})
	}
}
