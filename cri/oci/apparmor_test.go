package oci

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// testArmor is an AppArmor whose parser writes down what it is given, and puts the name among the kernel's profiles.
func testArmor(t *testing.T) (a *AppArmor, loads func() int) {
	t.Helper()
	dir := t.TempDir()
	a = &AppArmor{profiles: filepath.Join(dir, "profiles"), parser: filepath.Join(dir, "parser"), own: filepath.Join(dir, "own")}
	must(t, os.WriteFile(a.profiles, []byte("/usr/bin/man (enforce)\nberth-default-not (enforce)\n"), 0o600))
	script := "#!/bin/sh\necho \"$@\" >> " + dir + "/args; cat > " + dir + "/text; echo '" + AppArmorDefault + " (enforce)' >> " + a.profiles + "\n"
	must(t, os.WriteFile(a.parser, []byte(script), 0o700))
	return a, func() int {
		b, _ := os.ReadFile(filepath.Join(dir, "args"))
		return strings.Count(string(b), "--replace")
	}
}

func TestAppArmorIsLoaded(t *testing.T) {
	a, loads := testArmor(t)
	for range 3 {
		must(t, a.Ensure(t.Context()))
	}
	if loads() != 1 {
		t.Errorf("loaded %d times", loads())
	}
	// Somebody has removed it.
	must(t, os.WriteFile(a.profiles, nil, 0o600))
	must(t, a.Ensure(t.Context()))
	// Another process replaces what one before it has loaded.
	must(t, (&AppArmor{profiles: a.profiles, parser: a.parser, own: a.own}).Ensure(t.Context()))
	if loads() != 3 {
		t.Errorf("loaded %d times in all", loads())
	}
	if b, err := os.ReadFile(filepath.Join(filepath.Dir(a.parser), "text")); err != nil || !strings.Contains(string(b), "profile "+AppArmorDefault+" ") || strings.Contains(string(b), "AGENT") {
		t.Errorf("the parser was given %q, %v", b, err)
	}
}

func TestAppArmorCannotBeLoaded(t *testing.T) {
	a, _ := testArmor(t)
	a.parser += "-that-is-not-there"
	if err := a.Ensure(t.Context()); !errors.Is(err, ErrNoProfile) {
		t.Errorf("without a parser: got %v", err)
	}
	must(t, os.WriteFile(a.profiles, []byte(AppArmorDefault+" (enforce)\n"), 0o600))
	if err := a.Ensure(t.Context()); err != nil {
		t.Errorf("loaded by somebody else: got %v", err)
	}
	must(t, os.Remove(a.profiles))
	if err := a.Ensure(t.Context()); !errors.Is(err, ErrNoProfile) {
		t.Errorf("without securityfs: got %v", err)
	}
	a, _ = testArmor(t)
	must(t, os.WriteFile(a.parser, []byte("#!/bin/sh\necho syntax error; exit 1\n"), 0o700))
	// What is wrong with the profile is not the machine's want of it.
	if err := a.Ensure(t.Context()); err == nil || errors.Is(err, ErrNoProfile) || !strings.Contains(err.Error(), "syntax error") {
		t.Errorf("a parser that fails: got %v", err)
	}
}

func TestAppArmorOfConfinedAgent(t *testing.T) {
	a, _ := testArmor(t)
	for label, want := range map[string]bool{"unconfined\n": false, "/usr/bin/berth (enforce)\n": true, "a//b": true, "x\", file,\n (enforce)": false, "": false} {
		must(t, os.WriteFile(a.own, []byte(label), 0o600))
		if got := strings.Count(string(a.profile()), "signal (receive)") == 2; got != want {
			t.Errorf("%q: may send signals: %v", label, got)
		}
	}
}

// TestAppArmorCompiles has the real parser read the profile, where there is one.
func TestAppArmorCompiles(t *testing.T) {
	parser, err := (&AppArmor{}).find()
	if err != nil {
		t.Skip(err)
	}
	cmd := exec.CommandContext(t.Context(), parser, "--skip-kernel-load", "--skip-cache")
	cmd.Stdin = strings.NewReader(string((&AppArmor{}).profile()))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

func TestWhoIsArmored(t *testing.T) {
	profile := func(kind runtimeapi.SecurityProfile_ProfileType) func(*Input) {
		return func(in *Input) {
			sc(in).Apparmor = &runtimeapi.SecurityProfile{ProfileType: kind, LocalhostRef: "mine"}
		}
	}
	for name, c := range map[string]struct {
		change func(*Input)
		want   string
	}{
		"nothing said":    {func(*Input) {}, AppArmorDefault},
		"runtime default": {profile(runtimeapi.SecurityProfile_RuntimeDefault), AppArmorDefault},
		"older clients":   {func(in *Input) { sc(in).ApparmorProfile = "runtime/default" }, AppArmorDefault}, //nolint:staticcheck // that is what it is about
		"unconfined":      {profile(runtimeapi.SecurityProfile_Unconfined), ""},
		"localhost":       {profile(runtimeapi.SecurityProfile_Localhost), "mine"},
		"privileged":      {func(in *Input) { in.Privileged, sc(in).Privileged = true, true }, ""},
	} {
		with := func(in *Input) {
			c.change(in)
			in.Host.AppArmor, in.Armored = true, true
		}
		if s := spec(t, with); s.Process.ApparmorProfile != c.want || WantsDefault(input(with).Container) != (c.want == AppArmorDefault) {
			t.Errorf("%s: got %q", name, s.Process.ApparmorProfile)
		}
		if c.want == AppArmorDefault {
			if s := spec(t, func(in *Input) { c.change(in); in.Host.AppArmor = true }); s.Process.ApparmorProfile != "" {
				t.Errorf("%s where it is not loaded: got %q", name, s.Process.ApparmorProfile)
			}
		}
	}
}

// TestSlowParser has a parser that does not come to its end: who has given up waits for it no longer.
func TestSlowParser(t *testing.T) {
	a, _ := testArmor(t)
	pipe := filepath.Join(t.TempDir(), "begun")
	must(t, unix.Mkfifo(pipe, 0o600))
	must(t, os.WriteFile(a.parser, []byte("#!/bin/sh\necho > "+pipe+"; exec sleep 1000\n"), 0o700))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Ensure(ctx) }()
	if _, err := os.ReadFile(pipe); err != nil { // the parser runs
		t.Fatal(err)
	}
	gone, end := context.WithDeadline(t.Context(), time.Now())
	defer end()
	if err := a.Ensure(gone); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error is %v", err)
	}
	if len(ended) > 0 {
		t.Error("it has waited for the parser")
	}
	cancel()
	if err := <-ended; err == nil {
		t.Error("a load that was given up has worked")
	}
}
