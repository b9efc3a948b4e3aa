package check

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

func TestPropagation(t *testing.T) {
	const (
		shared  = "28 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw\n"
		private = "28 1 254:1 / / rw,relatime - ext4 /dev/vda1 rw\n"
		slave   = "28 1 254:1 / / rw,relatime master:1 - ext4 /dev/vda1 rw\n"
		other   = "30 28 0:5 / /dev rw shared:2 - devtmpfs udev rw\n"
	)
	for in, want := range map[string]Status{
		shared + other: OK, other + private: Limited, slave + other: Limited, shared + private: Limited, private + shared: OK, other: Missing, "": Missing, "x\n/ / / / /\n": Missing,
	} {
		if a := propagation(strings.NewReader(in)); a.status != want {
			t.Errorf("%q: %+v", in, a)
		}
	}
}

// TestPropagationOfKernel asks the kernel, in a mount namespace where / is made private and shared again.
func TestPropagationOfKernel(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes a mount namespace")
	}
	var answers []answer
	err := thread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS); err != nil {
			return err
		}
		// First no change may leave the namespace.
		for _, flags := range []uintptr{unix.MS_REC | unix.MS_PRIVATE, unix.MS_REC | unix.MS_SHARED} {
			if err := unix.Mount("", "/", "", flags, ""); err != nil {
				return err
			}
			data, err := os.ReadFile("/proc/thread-self/mountinfo")
			if err != nil {
				return err
			}
			answers = append(answers, propagation(bytes.NewReader(data)))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if answers[0].status != Limited || answers[1].status != OK {
		t.Errorf("%+v", answers)
	}
}

// TestForwardPolicy makes chains as iptables and others do, in a network namespace of its own.
func TestForwardPolicy(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes a network namespace")
	}
	drop, accept := nftables.ChainPolicyDrop, nftables.ChainPolicyAccept
	for _, c := range []struct {
		policy nftables.ChainPolicy
		hook   *nftables.ChainHook
		want   Status
	}{{accept, nftables.ChainHookForward, OK}, {drop, nftables.ChainHookForward, Limited}, {drop, nftables.ChainHookInput, OK}} {
		var got answer
		err := inNet(func() error {
			conn, err := nftables.New()
			if err != nil {
				return err
			}
			table := conn.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "filter"})
			conn.AddChain(&nftables.Chain{Name: "FORWARD", Table: table, Type: nftables.ChainTypeFilter, Hooknum: c.hook, Priority: nftables.ChainPriorityFilter, Policy: &c.policy})
			if err := conn.Flush(); err != nil {
				return err
			}
			got = probeForwardPolicy(t.Context(), &env{})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if got.status != c.want || c.want == Limited && !strings.Contains(got.found, "chain FORWARD of table ip filter") {
			t.Errorf("%+v: %+v", c, got)
		}
	}
}

func TestEndpoint(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "config.yaml")
	for text, want := range map[string]answer{
		"kind: KubeletConfiguration\nport: 10250\n":                                                               {OK, "on, by " + name},
		"kind: KubeletConfiguration\ncontainerRuntimeEndpoint: \"\"\n":                                            {OK, "on, by " + name},
		"kind: BerthConfiguration\n---\nkind: KubeletConfiguration\ncontainerRuntimeEndpoint: unix:///run/c.sock": {Limited, name + " has containerRuntimeEndpoint: unix:///run/c.sock"},
		"{{{": {Limited, "cannot be read"},
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if a := probeEndpoint(t.Context(), &env{config: name}); a.status != want.status || !strings.Contains(a.found, want.found) {
			t.Errorf("%q: %+v", text, a)
		}
	}
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "10-runtime.conf"), []byte("containerRuntimeEndpoint: unix:///x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if a := probeEndpoint(t.Context(), &env{config: name, configDir: dir}); a.status != Limited {
		t.Errorf("%+v", a)
	}
	if a := probeEndpoint(t.Context(), &env{config: dir + "/none"}); a.status != Limited {
		t.Errorf("a file that there is not: %+v", a)
	}
}
