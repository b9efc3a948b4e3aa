package vm

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// process is that of the pod which stays, as its machine counts.
func (l *life) process() string { return l.machine.run("pgrep -f '^/bin/busybox httpd'") }

// goesOn holds the pod to its process, which answers.
func (l *life) goesOn(t *testing.T, after, process string) {
	t.Helper()
	l.ready("site")
	l.serves(t)
	if now := l.process(); now != process {
		t.Errorf("after %s the pod's process was %s and is %s", after, process, now)
	}
}

// dpkgHas holds dpkg to a version, whose files are there.
func (l *life) dpkgHas(t *testing.T, version string) {
	t.Helper()
	m := l.machine
	if got := m.run("dpkg-query -W -f '${Version}' berth"); got != version {
		t.Errorf("%s is installed, not %s", got, version)
	}
	if out := m.run("dpkg --verify berth | grep '^..5' || true"); out != "" {
		t.Errorf("of the package other files are there: %s", out)
	}
	if out := m.run("berth check | grep '^package'"); !strings.Contains(out, version) {
		t.Errorf("berth check says %q of the package, not %s", out, version)
	}
}

// byBerth is the command that upgrades to a file.
func byBerth(file, more string) string {
	return fmt.Sprintf("berth upgrade %s --sha256 $(sha256sum <%s | cut -c 1-64) %s", more, file, file)
}

const newDeb = "/run/berth-vm/new.deb"

// upgraded goes to the new release and back, and there again by berth's own command, with a pod that goes on.
func (l *life) upgraded(t *testing.T) {
	m := l.machine
	was := l.process()
	for _, step := range []struct{ release, script string }{
		{"new", "dpkg -i " + newDeb}, {"old", "dpkg -i /run/berth-vm/old.deb"}, {"new", byBerth(newDeb, "")},
	} {
		version := m.run("dpkg-deb -f /run/berth-vm/" + step.release + ".deb Version")
		m.run(step.script)
		m.await("the service", "systemctl is-active berth && berth pods")
		l.goesOn(t, step.script, was)
		l.dpkgHas(t, version)
	}
}

// rolledBack goes back by berth's own command, which has dpkg install what it has replaced; so does a release that does
// not come up.
func (l *life) rolledBack(t *testing.T) {
	m := l.machine
	was := l.process()
	old := m.run("dpkg-deb -f /run/berth-vm/old.deb Version")
	m.run("berth upgrade --rollback")
	l.goesOn(t, "the way back", was)
	l.dpkgHas(t, old)
	m.run(`
mkdir /root/broken
dpkg-deb -R ` + newDeb + ` /root/broken
sed -i 's/^Version: .*/Version: 9.9/' /root/broken/DEBIAN/control
rm /root/broken/DEBIAN/md5sums
printf '#!/bin/sh\nexec sleep 1000\n' >/root/broken/usr/bin/berth
echo 'ExecStartPre=/bin/true' >>/root/broken/usr/lib/systemd/system/berth.service
dpkg-deb --root-owner-group -Znone -b /root/broken /root/broken.deb
rm -r /root/broken`)
	out, err := m.try(10*time.Minute, byBerth("/root/broken.deb", "--ready-timeout 20s"))
	if err == nil || !strings.Contains(out, "rolled back") {
		t.Errorf("a version that is never ready: %v: %s", err, out)
	}
	l.goesOn(t, "a version that is never ready", was)
	l.dpkgHas(t, old)
	if out := m.run("ls /usr/bin/berth.* /usr/libexec/berth/*.previous /usr/libexec/berth/upgrade 2>/dev/null || true"); out != "/usr/libexec/berth/upgrade:\nlock" {
		t.Errorf("left of upgrades: %s", out)
	}
	m.run("rm /root/broken.deb; " + byBerth(newDeb, ""))
	l.goesOn(t, "the upgrade", was)
}
