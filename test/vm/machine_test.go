package vm

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berth-node/berth/test/plane"
)

// How long a machine may take until it executes commands, for one of them, and until what is waited for is so: its
// processor is emulated, and the one below it may be busy.
const (
	bootLimit  = 20 * time.Minute
	runLimit   = 20 * time.Minute
	awaitLimit = 20 * time.Minute
)

// machine is a virtual machine whose disk outlasts its power.
type machine struct {
	t     *testing.T
	image string // directory of vmlinuz, initrd and the disk that the machine's own begins as
	dir   string
	// Ports of this machine's loopback, which are 8080 and 10250 of the virtual one.
	port, kubelet int

	cmd   *exec.Cmd
	ended chan struct{}
	conn  net.Conn
	lines chan answer
	last  int
}

// An order and its answer are what the guest program reads and writes: a line of JSON each.
type (
	order struct {
		ID      int    `json:"id"`
		Script  string `json:"script"`
		Seconds int    `json:"seconds"`
	}
	answer struct {
		ID     int    `json:"id"` // 0: the machine is up
		Output string `json:"output"`
		Code   int    `json:"code"`
		Error  string `json:"error"`
	}
)

// newMachine makes a machine that has a directory's files at /run/berth-vm.
func newMachine(t *testing.T, files string) *machine {
	t.Helper()
	m := &machine{t: t, image: os.Getenv("VM_IMAGE"), dir: t.TempDir()}
	for _, port := range []*int{&m.port, &m.kubelet} {
		var err error
		*port, err = strconv.Atoi(plane.Port(t, "127.0.0.1"))
		m.must(err)
	}
	m.host("mke2fs", "-q", "-t", "ext4", "-d", files, m.path("files.raw"), "512M")
	m.host("qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", filepath.Join(m.image, "disk.raw"), m.path("disk.qcow2"))
	t.Cleanup(func() {
		m.cut()
		if t.Failed() {
			console, _ := os.ReadFile(m.path("console"))
			t.Logf("the end of the console: %s", console[max(0, len(console)-4000):])
		}
	})
	return m
}

func (m *machine) path(name string) string { return filepath.Join(m.dir, name) }

func (m *machine) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) host(name string, args ...string) {
	m.t.Helper()
	if out, err := exec.CommandContext(m.t.Context(), name, args...).CombinedOutput(); err != nil {
		m.t.Fatalf("%s: %v: %s", name, err, out)
	}
}

// qemu is the command of a machine. That of another processor than this one's is emulated just so.
func (m *machine) qemu() *exec.Cmd {
	program, hardware, kernel := "qemu-system-x86_64", []string{"-cpu", "max", "-machine", "q35,graphics=off,usb=off"},
		"console=ttyS0 no_timer_check tsc=reliable"
	if arch() == "arm64" {
		// Pointer authentication as Arm defines it takes most of an emulator's time.
		program, kernel = "qemu-system-aarch64", "console=ttyAMA0"
		hardware = []string{"-cpu", "max,pauth-impdef=on", "-machine", "virt,gic-version=3"}
	}
	return exec.Command(program, append(hardware, "-nodefaults", "-no-user-config", "-display", "none",
		"-accel", "tcg,thread=multi,tb-size=512", "-smp", "2", "-m", "3072",
		"-kernel", filepath.Join(m.image, "vmlinuz"), "-initrd", filepath.Join(m.image, "initrd"),
		"-append", kernel+" quiet loglevel=4 panic=-1 psi=1 mitigations=off random.trust_cpu=on net.ifnames=0 systemd.show_status=no",
		"-drive", "file="+m.path("disk.qcow2")+",format=qcow2,if=virtio,cache=writeback",
		"-drive", "file="+m.path("files.raw")+",format=raw,if=virtio,readonly=on",
		"-netdev", fmt.Sprintf("user,id=n,restrict=on,hostfwd=tcp:127.0.0.1:%d-10.0.2.15:8080,hostfwd=tcp:127.0.0.1:%d-10.0.2.15:10250",
			m.port, m.kubelet),
		"-device", "virtio-net-pci,netdev=n,romfile=", "-device", "virtio-rng-pci", "-device", "virtio-serial-pci",
		"-chardev", "socket,id=port,server=on,wait=off,path="+m.path("port"), "-device", "virtserialport,chardev=port,name=berth",
		"-serial", "file:"+m.path("console"))...)
}

// boot switches the machine on, and waits until it executes commands. What the system in it has not flushed is in
// qemu's memory or its own, and goes with the power.
func (m *machine) boot() {
	m.t.Helper()
	os.Remove(m.path("port"))
	cmd := m.qemu()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	m.must(cmd.Start())
	m.cmd = cmd
	m.ended = make(chan struct{})
	go func() {
		defer close(m.ended)
		_ = m.cmd.Wait()
	}()
	for m.conn = nil; m.conn == nil; {
		conn, err := net.Dial("unix", m.path("port"))
		if err == nil {
			m.conn = conn
			break
		}
		select {
		case <-m.ended:
			m.t.Fatal("qemu has ended before it listened")
		case <-time.After(20 * time.Millisecond): // its socket has no event before it is there
		}
	}
	m.lines = make(chan answer, 16)
	go read(m.conn, m.lines)
	m.awaitUp()
}

// read hands on the answers that come over the port. What a reboot has cut off is none.
func read(conn net.Conn, lines chan<- answer) {
	defer close(lines)
	in := bufio.NewReader(conn)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		var a answer
		if json.Unmarshal(line, &a) == nil {
			lines <- a
		}
	}
}

// awaitUp waits for the word of a machine that has booted.
func (m *machine) awaitUp() {
	m.t.Helper()
	deadline := time.After(bootLimit)
	for {
		select {
		case a, ok := <-m.lines:
			if !ok {
				m.t.Fatal("the machine has ended while it booted")
			}
			if a.ID == 0 {
				return
			}
		case <-deadline:
			m.t.Fatal("the machine does not come up")
		}
	}
}

// try executes a script in the machine.
func (m *machine) try(limit time.Duration, script string) (string, error) {
	m.last++
	data, err := json.Marshal(order{m.last, script, int(limit.Seconds())})
	if err != nil {
		return "", err
	}
	if _, err := m.conn.Write(append(data, '\n')); err != nil {
		return "", fmt.Errorf("send command: %w", err)
	}
	deadline := time.After(limit + time.Minute)
	for {
		select {
		case a, ok := <-m.lines:
			switch {
			case !ok:
				return "", errors.New("the machine has ended")
			case a.ID != m.last:
			case a.Error != "":
				return a.Output, errors.New(a.Error)
			default:
				return a.Output, nil
			}
		case <-deadline:
			return "", context.DeadlineExceeded
		}
	}
}

// run executes a script that has to work.
func (m *machine) run(script string) string {
	m.t.Helper()
	out, err := m.try(runLimit, "set -euo pipefail\n"+script)
	if err != nil {
		m.t.Fatalf("%s\n%v: %s", script, err, out)
	}
	return strings.TrimSpace(out)
}

// await executes a script again and again until it works.
func (m *machine) await(what, script string) string {
	m.t.Helper()
	loop := fmt.Sprintf("end=$((SECONDS + %d)); while ((SECONDS < end)); do if out=$(%s\n); then echo \"$out\"; exit 0; fi; sleep 0.5; done; echo \"$out\"; exit 1",
		int(awaitLimit.Seconds()), script)
	out, err := m.try(awaitLimit+2*time.Minute, loop)
	if err != nil {
		log, _ := m.try(time.Minute, "berth pods -A; berth events | tail -n 30; journalctl -u berth --no-pager -n 60; systemctl status berth --no-pager")
		m.t.Fatalf("waited for %s: %v: %s\n%s", what, err, out, log)
	}
	return strings.TrimSpace(out)
}

// reboot has the machine boot as its administrator does.
func (m *machine) reboot() {
	m.t.Helper()
	if _, err := m.try(time.Minute, "systemctl reboot"); err != nil {
		m.t.Logf("reboot: %v", err)
	}
	m.awaitUp()
}

// cut takes the machine's power away.
func (m *machine) cut() {
	if m.cmd == nil {
		return
	}
	_ = m.cmd.Process.Kill()
	<-m.ended
	m.conn.Close()
	for range m.lines { // the reader ends when all it has read is taken
	}
	m.cmd = nil
}
