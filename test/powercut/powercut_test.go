package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// machine is a virtual machine with a disk that outlasts its power.
type machine struct {
	t     *testing.T
	image string // with the kernel, the first disk, which is as it was at each start, and what runs a job
	dir   string
}

// newMachine makes the disks: POWERCUT_IMAGE is what test/vm/image prints, a directory with vmlinuz, initrd and
// disk.raw, whose system executes the program guest of its second disk.
func newMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{t: t, image: os.Getenv("POWERCUT_IMAGE"), dir: t.TempDir()}
	if m.image == "" {
		t.Skip("needs a machine to cut the power of: make csi-powercut")
	}
	must(t, os.Mkdir(m.path("programs"), 0o755))
	for from, to := range map[string]string{os.Getenv("POWERCUT_BERTH"): "berth", os.Getenv("POWERCUT_GUEST"): "powercut"} {
		data, err := os.ReadFile(from)
		must(t, err)
		must(t, os.WriteFile(filepath.Join(m.path("programs"), to), data, 0o755))
	}
	m.host("mke2fs", "-q", "-t", "ext4", m.path("data.raw"), "2G")
	return m
}

func (m *machine) path(name string) string { return filepath.Join(m.dir, name) }

func (m *machine) host(name string, args ...string) {
	m.t.Helper()
	if out, err := exec.CommandContext(m.t.Context(), name, args...).CombinedOutput(); err != nil {
		m.t.Fatalf("%s: %v: %s", name, err, out)
	}
}

// boot starts the machine with a job. Its output is a line each; nothing of what the host has cached is written later,
// since nothing is cached there.
func (m *machine) boot(job string) (out *bufio.Reader, cut func()) {
	m.t.Helper()
	must(m.t, os.WriteFile(filepath.Join(m.path("programs"), "guest"), []byte(job), 0o755))
	os.Remove(m.path("programs.raw"))
	m.host("mke2fs", "-q", "-t", "ext4", "-d", m.path("programs"), m.path("programs.raw"), "128M")
	cmd := exec.CommandContext(m.t.Context(), "qemu-system-x86_64", "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
		"-accel", "tcg,thread=multi,tb-size=256", "-cpu", "max", "-smp", "2", "-m", "1024", "-machine", "q35,graphics=off,usb=off",
		"-kernel", filepath.Join(m.image, "vmlinuz"), "-initrd", filepath.Join(m.image, "initrd"),
		"-append", "console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off no_timer_check tsc=reliable random.trust_cpu=on systemd.show_status=no",
		"-drive", "file="+filepath.Join(m.image, "disk.raw")+",format=raw,if=virtio,snapshot=on,cache=unsafe",
		"-drive", "file="+m.path("programs.raw")+",format=raw,if=virtio,readonly=on",
		"-drive", "file="+m.path("data.raw")+",format=raw,if=virtio,cache=none,aio=threads",
		"-device", "virtio-rng-pci", "-device", "virtio-serial-pci",
		"-chardev", "stdio,id=out,signal=off", "-device", "virtserialport,chardev=out,name=berth",
		"-serial", "file:"+m.path("console"))
	stdin, err := cmd.StdinPipe() // at its end the machine would have no more output
	must(m.t, err)
	stdout, err := cmd.StdoutPipe()
	must(m.t, err)
	cmd.Stderr = os.Stderr
	must(m.t, cmd.Start())
	m.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_, _ = io.Copy(io.Discard, stdout)
		_ = cmd.Wait()
		stdin.Close()
	})
	return bufio.NewReader(stdout), func() { _ = cmd.Process.Kill() }
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// house is what is known of the volumes from outside of the machine.
type house struct {
	all  map[string]promised
	took map[string]time.Duration
}

// hear takes a line, and says what is being done now.
func (h *house) hear(line string) (doing string) {
	words := strings.Split(line, " ")
	if len(words) < 3 {
		return ""
	}
	name, act := words[1], words[2]
	p := h.all[name]
	if words[0] == "DO" {
		p.Doubt = act
		h.all[name] = p
		return act
	}
	if words[0] != "DID" || len(words) < 5 {
		return ""
	}
	p.Doubt = ""
	switch act {
	case "create":
		p.ID = words[4]
	case "write":
		p.Text = words[4]
	case "snapshot":
		p.Snapshot = words[4]
	case "expand":
		p.Large = true
	}
	if ms, err := strconv.Atoi(words[3]); err == nil {
		h.took[act] = time.Duration(ms) * time.Millisecond
	}
	h.all[name] = p
	return ""
}

// job mounts the lasting disk, starts the driver, and lets the user do.
func (h *house) job(t *testing.T, round string) string {
	ledger, err := json.Marshal(h.all)
	must(t, err)
	return fmt.Sprintf(`#!/bin/bash
exec >/dev/virtio-ports/berth
mkdir -p /mnt/data
mount /dev/vdc /mnt/data || { echo FAILED mount; exit 1; }
/run/berth-vm/berth csi-local --endpoint unix:///run/csi.sock --data-dir /mnt/data/csi --node-id cut >/dev/console 2>&1 &
/run/berth-vm/powercut /run/csi.sock /mnt/data/csi '%s' '%s'
sleep infinity
`, ledger, round)
}

// TestPowerCut cuts the power in the middle of acts, again and again on one disk. Each time everything is there that
// was promised before: the volumes, the snapshots, their sizes, what was synced; and nothing else is.
func TestPowerCut(t *testing.T) {
	m := newMachine(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	h := &house{all: map[string]promised{}, took: map[string]time.Duration{}}
	acts := []string{"stage", "expand", "snapshot", "create", "stage", "expand", "snapshot", "write", "stage", "expand", "snapshot", "down"}
	for i, act := range append(acts, "") {
		h.cutIn(m, strconv.Itoa(i), act, random)
	}
}

// cutIn has the machine look at what there is, and cuts its power in the middle of an act; "": after the look.
func (h *house) cutIn(m *machine, round, act string, random *rand.Rand) {
	if act == "" {
		round = ""
	}
	out, cut := m.boot(h.job(m.t, round))
	looked, seen := false, 0
	for {
		line, err := out.ReadString('\n')
		if err != nil {
			break
		}
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "FAILED"):
			m.t.Fatalf("round %s, with %+v: %s", round, h.all, line)
		case strings.HasPrefix(line, "LOOKED"):
			m.t.Logf("round %s: %s", round, line)
			looked, h.all = true, map[string]promised{}
			if act == "" {
				cut()
				return
			}
		}
		if h.hear(line) != act || !looked {
			continue
		}
		// The first one tells how long it takes; in a later one the power goes at any moment of that time.
		if seen++; seen < 2 {
			continue
		}
		if took := h.took[act]; took > 0 {
			time.Sleep(time.Duration(random.Int64N(int64(took))))
		}
		cut()
		h.last(m.t, out, round)
		m.t.Logf("cut in %s, with %+v", act, h.all)
		return
	}
	console, _ := os.ReadFile(m.path("console"))
	m.t.Fatalf("the machine has ended by itself: %s", console[max(0, len(console)-2000):])
}

// last hears what the machine still said, which may be less than it has done.
func (h *house) last(t *testing.T, out *bufio.Reader, round string) {
	t.Helper()
	for {
		line, err := out.ReadString('\n')
		if err != nil {
			break
		}
		h.hear(strings.TrimSpace(line))
	}
	n := len(h.all)
	name := fmt.Sprintf("%s-%d", round, n-1)
	p := h.all[name]
	p.Unsure = true
	h.all[name] = p
	if p.Doubt == "down" || p.Doubt == "" {
		h.all[fmt.Sprintf("%s-%d", round, n)] = promised{Doubt: "create", Unsure: true}
	}
}
