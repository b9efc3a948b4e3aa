package vm

import (
	"strings"
	"testing"
	"time"
)

// TestTarball is the life of an installation without a package: by `berth install` from a release's archive, upgraded
// and back by berth's own command, removed by it.
func TestTarball(t *testing.T) {
	life := born(t)
	life.steps(t, []step{
		{"install", life.unpacked},
		{"pod", life.pod},
		{"upgrade", life.replaced},
		{"never ready", life.neverReady},
		{"uninstall", life.purged},
	})
}

func (l *life) unpacked(*testing.T) {
	m := l.machine
	l.before = m.run(state)
	m.run(`
mkdir /root/release
tar -C /root/release --strip-components=1 -xzf /run/berth-vm/old.tar.gz
/root/release/berth install --dry-run
/root/release/berth install`)
	m.await("the service", "systemctl is-active berth")
	m.run("berth check")
}

// version is what the program says of itself, and that is also what runs.
func (l *life) version() string {
	return l.machine.run(`berth version; [ "$(stat -Lc %i /proc/$(systemctl show -p MainPID --value berth)/exe)" = "$(stat -c %i /usr/local/bin/berth)" ]`)
}

// replaced goes to the new release and back, and there again.
func (l *life) replaced(t *testing.T) {
	m := l.machine
	const archive = "/run/berth-vm/new.tar.gz"
	was, old := l.process(), l.version()
	for i, script := range []string{byBerth(archive, ""), "berth upgrade --rollback", byBerth(archive, "")} {
		m.run(script)
		l.goesOn(t, script, was)
		if now := l.version(); (now == old) != (i == 1) {
			t.Errorf("after %s it is %s, and was %s", script, now, old)
		}
	}
}

// neverReady: a release whose agent does not come up is taken back by itself, unit and all.
func (l *life) neverReady(t *testing.T) {
	m := l.machine
	was, before := l.process(), l.version()
	units := m.run("sha256sum /etc/systemd/system/berth*")
	// The guest program says a version and lays out files by these names, and its agent does nothing.
	m.run(`
mkdir -p /root/broken
cp /run/berth-vm/guest /root/broken/berth
cp /run/berth-vm/guest /root/broken/berth-helper
cp /run/berth-vm/guest /root/broken/berth-wasm
tar -C /root -czf /root/broken.tar.gz broken
rm -r /root/broken`)
	out, err := m.try(10*time.Minute, byBerth("/root/broken.tar.gz", "--ready-timeout 20s"))
	if err == nil || !strings.Contains(out, "rolled back") {
		t.Errorf("a version that is never ready: %v: %s", err, out)
	}
	l.goesOn(t, "a version that is never ready", was)
	if now := l.version(); now != before {
		t.Errorf("it is %s, and was %s", now, before)
	}
	if now := m.run("sha256sum /etc/systemd/system/berth*"); now != units {
		t.Errorf("units were\n%s\nand are\n%s", units, now)
	}
}

// purged takes it all away with a pod that runs, as an administrator may.
func (l *life) purged(t *testing.T) {
	m := l.machine
	out := m.run("berth uninstall --purge")
	if !strings.Contains(out, "remove    /usr/local/bin/berth") {
		t.Errorf("it says %s", out)
	}
	// Manifests are the administrator's.
	m.run("rm -r /etc/berth /root/release /root/broken.tar.gz; systemctl stop registry; systemctl daemon-reload")
	for _, d := range differences(l.before, m.run(state)) {
		t.Errorf("after removal: %s", d)
	}
}
