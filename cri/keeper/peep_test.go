package keeper_test

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/profiles/seccomp"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-node/berth/cri/keeper"
)

// peep runs a container in the pod that has CAP_SYS_PTRACE and nothing else, and looks for processes that have more.
// The secret is what the keeper holds for another container.
func (p *pod) peep(secret string, change func(*specs.Spec)) (keeper.Container, keeper.Exec) {
	p.t.Helper()
	p.install("peep")
	marker := filepath.Join(p.dir, "marker")
	write(p.t, marker, "", 0o600)
	host, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		p.t.Fatal(err)
	}
	spec := p.spec("c", "/bin/peep", marker, host, secret[:4], secret[4:])
	spec.Process.Capabilities, spec.Process.NoNewPrivileges = onlyPtrace(), true
	change(spec)
	profile, err := seccomp.GetDefaultProfile(spec)
	if err != nil {
		p.t.Fatal(err)
	}
	spec.Linux.Seccomp = profile
	c := p.container(spec)
	pid, err := p.Run(p.t.Context(), c)
	if err != nil {
		p.t.Fatal(err)
	}
	bpf, err := os.ReadFile(filepath.Join(c.Bundle, "seccomp.bpf"))
	if err != nil {
		p.t.Fatal(err)
	}
	pr := p.spec(c.ID, "/bin/true").Process
	pr.Capabilities, pr.NoNewPrivileges = onlyPtrace(), spec.Process.NoNewPrivileges
	return c, keeper.Exec{ContainerID: c.ID, Pid: pid, Process: pr, SeccompBPF: bpf}
}

// install puts a program of test/fixtures into the root directory. It is compiled, or where there is no compiler as
// make build-test has made it.
func (p *pod) install(name string) {
	p.t.Helper()
	bin := filepath.Join(p.rootfs, "bin", name)
	cc, err := exec.LookPath("cc")
	if err != nil {
		b, err := os.ReadFile(filepath.Join("../../bin/test", name))
		if err != nil {
			p.t.Skipf("needs a C compiler, or what make build-test makes: %v", err)
		}
		write(p.t, bin, string(b), 0o755)
		return
	}
	if out, err := exec.Command(cc, "-O2", "-static", "-o", bin, filepath.Join("../../test/fixtures", name+".c")).CombinedOutput(); err != nil {
		p.t.Fatalf("%v: %s", err, out)
	}
}

func onlyPtrace() *specs.LinuxCapabilities {
	caps := []string{"CAP_SYS_PTRACE"}
	return &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps}
}

// saw returns what a peeping container has found, and how many processes of ours it has held and looked at.
func (p *pod) saw(c keeper.Container) (found []string, held int) {
	for _, l := range p.log(c.ID) {
		if strings.Contains(l, " found ") {
			found = append(found, l)
		}
		if strings.Contains(l, " seen ") {
			held++
		}
	}
	return found, held
}

// TestContainerSeesNoProcessWithMoreThanItself looks into every process of execs and exec probes on its way into the
// container. The kernel does not protect those from CAP_SYS_PTRACE: /proc/N/root of one with the host's root is the
// host.
func TestContainerSeesNoProcessWithMoreThanItself(t *testing.T) {
	for name, tc := range map[string]struct {
		shared bool
		change func(*specs.Spec)
	}{
		"own PID namespace":    {false, func(*specs.Spec) {}},
		"without no_new_privs": {false, func(s *specs.Spec) { s.Process.NoNewPrivileges = false }},
		"shared PID namespace": {true, func(*specs.Spec) {}},
	} {
		t.Run(name, func(t *testing.T) {
			const secret = "4711-what-another-container-said"
			p := newPod(t, func(c *keeper.Config) { c.PID = tc.shared })
			share := func(s *specs.Spec) {
				if i := slices.IndexFunc(s.Linux.Namespaces, isPID); tc.shared {
					s.Linux.Namespaces[i].Path = p.NSPath("pid")
				}
			}
			other := p.spec("c", "/bin/sh", "-c", "while :; do echo "+secret+"; sleep 0.05; done")
			other.Process.Capabilities = onlyPtrace()
			share(other)
			oc := p.container(other)
			opid, err := p.Run(t.Context(), oc)
			if err != nil {
				t.Fatal(err)
			}
			c, e := p.peep(secret, func(s *specs.Spec) {
				tc.change(s)
				share(s)
				if tc.shared {
					s.Process.Args = append(s.Process.Args, "shared")
				}
			})
			deadline := time.Now().Add(time.Minute)
			for i := 0; ; i++ {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				_, err := p.Capture(ctx, e, io.Discard, io.Discard)
				cancel()
				if err != nil {
					t.Fatal(err)
				}
				proc, err := p.Exec(t.Context(), e)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := proc.Wait(t.Context()); err != nil {
					t.Fatal(err)
				}
				proc.Close()
				if i%5 == 0 && !tc.shared { // leaves its environment in the keeper's memory
					_, _, _ = p.execIn(oc.ID, opid, func(e *keeper.Exec) { e.Process.Env = append(e.Process.Env, "SECRET="+secret) }, "true")
				}
				found, held := p.saw(c)
				if len(found) > 0 {
					t.Fatalf("after %d execs a container found:\n%s", 2*(i+1), strings.Join(found, "\n"))
				}
				if held >= 20 {
					return
				}
				if time.Now().After(deadline) {
					if held == 0 {
						t.Fatal("nothing was ever held, so nothing is known")
					}
					return
				}
			}
		})
	}
}

func isPID(n specs.LinuxNamespace) bool { return n.Type == specs.PIDNamespace }

// readSpecOf reads what a container was made of.
func readSpecOf(c keeper.Container) (*specs.Spec, error) {
	b, err := os.ReadFile(filepath.Join(c.Bundle, "config.json"))
	if err != nil {
		return nil, err
	}
	var s specs.Spec
	return &s, json.Unmarshal(b, &s)
}
