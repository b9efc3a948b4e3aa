package node

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// ReadMachine is what the machine says of itself, by files below root, which is "/". What it does not say is left out.
func ReadMachine(root string) Machine {
	read := func(paths ...string) string {
		for _, p := range paths {
			if text := line(filepath.Join(root, p)); text != "" {
				return text
			}
		}
		return ""
	}
	m := Machine{
		ID:     read("etc/machine-id", "var/lib/dbus/machine-id"),
		UUID:   strings.ToLower(read("sys/class/dmi/id/product_uuid", "proc/device-tree/system-id", "proc/device-tree/vm,uuid")),
		BootID: read("proc/sys/kernel/random/boot_id"),
		Kernel: read("proc/sys/kernel/osrelease"),
		OS:     prettyName(root),
		Swap:   swap(filepath.Join(root, "proc/meminfo")),
	}
	if m.UUID == "" {
		m.UUID = m.ID // as kubelet has it on machines without firmware that would say
	}
	return m
}

// maxFile bounds what is read of a file that anybody may have written.
const maxFile = 64 << 10

func contents(path string) []byte {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	out := make([]byte, maxFile)
	n := 0
	for n < len(out) { // files of the kernel come in parts
		k, err := f.Read(out[n:])
		n += k
		if err != nil {
			break
		}
	}
	return out[:n]
}

// line is a file of one. Those of the device tree end with a zero.
func line(path string) string {
	return string(bytes.TrimSpace(bytes.Trim(contents(path), "\x00")))
}

// prettyName is how the system calls itself (os-release(5)).
func prettyName(root string) string {
	for _, p := range []string{"etc/os-release", "usr/lib/os-release"} {
		in := bufio.NewScanner(bytes.NewReader(contents(filepath.Join(root, p))))
		for in.Scan() {
			value, ok := strings.CutPrefix(in.Text(), "PRETTY_NAME=")
			if !ok {
				continue
			}
			if inner, err := strconv.Unquote(value); err == nil {
				return inner
			}
			return strings.Trim(value, `'"`)
		}
	}
	return "Linux"
}

func swap(meminfo string) int64 {
	for l := range bytes.Lines(contents(meminfo)) {
		f := bytes.Fields(l)
		if len(f) < 2 || string(f[0]) != "SwapTotal:" {
			continue
		}
		kib, err := strconv.ParseInt(string(f[1]), 10, 64)
		if err == nil && kib < 1<<50 {
			return kib << 10
		}
	}
	return 0
}
