package keeper_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-node/berth/cri/keeper"
)

// TestHomeOfExecIsThatOfStart has who starts in a container and who enters it be at home in the same place: Go reads
// the file for the one, C for the other.
func TestHomeOfExecIsThatOfStart(t *testing.T) {
	p := newPod(t)
	passwd := filepath.Join(p.rootfs, "etc/passwd")
	// More than C reads at once.
	long := strings.Repeat("nobody:x:65534:65534:"+strings.Repeat("n", 200)+":/:/bin/false\n", 500)
	write(t, passwd, "# 3:x:3:3::/comment:\n\nbroken\nbad:x:1:one::/bad:\n:x:1:1::/nameless:\nmore:x:1x:1::/more:\n"+
		"stay:x:1:4294967295::/stay:\n nul\x00:x:1:1::/nul:\n \tone:x:01:1:One:/one:/bin/sh\r\nagain:x:1:1::/again:\n"+
		"none:x:2:2:::\nagain:x:2:2::/second:\nshort:x:4:4\n"+long+"far:x:6:6::/far/away:/bin/sh\nlast:x:7:7::/last", 0o644)
	id, pid := p.sh("sleep 1000")
	for uid, want := range map[uint32]string{1: "/one", 2: "/", 3: "/", 4: "/", 5: "/", 6: "/far/away", 7: "/last"} {
		for _, env := range [][]string{nil, {"HOME="}, {"HOME=/a", "HOME="}} {
			change := func(p *specs.Process) { p.User.UID, p.Env = uid, append(p.Env, env...) }
			out, _, err := p.execIn(id, pid, func(e *keeper.Exec) { change(e.Process) }, "sh", "-c", "env | grep ^HOME=")
			if err != nil || out != "HOME="+want+"\n" {
				t.Errorf("who enters with %d and %q is at %q, %v; want %s", uid, env, out, err, want)
			}
		}
		spec := p.spec("user", "sh", "-c", "env | grep ^HOME=")
		spec.Process.User.UID = uid
		c := p.container(spec)
		if _, err := p.Run(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		p.exit(c.ID)
		if lines := p.log(c.ID); len(lines) == 0 || !strings.HasSuffix(lines[len(lines)-1], "HOME="+want) {
			t.Errorf("who starts with %d is at %q, want %s", uid, lines, want)
		}
	}
}

// TestHomeOfExecIsTheLatest: images for users of any number add a line for theirs when they begin.
func TestHomeOfExecIsTheLatest(t *testing.T) {
	p := newPod(t)
	passwd := filepath.Join(p.rootfs, "etc/passwd")
	if err := os.Remove(passwd); err != nil {
		t.Fatal(err)
	}
	id, pid := p.sh("sleep 1000")
	for _, home := range []string{"/", "/late", "/later"} {
		if home != "/" {
			write(t, passwd, "me:x:4711:0::"+home+":/bin/sh\n", 0o644)
		}
		out, _, err := p.execIn(id, pid, func(e *keeper.Exec) { e.Process.User.UID = 4711 }, "sh", "-c", "echo $HOME")
		if err != nil || out != home+"\n" {
			t.Errorf("home is %q, %v; want %s", out, err, home)
		}
	}
}
