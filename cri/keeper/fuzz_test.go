package keeper

import (
	"path/filepath"
	"strings"
	"testing"
)

func FuzzDecode(f *testing.F) {
	var p fields
	p.str(tagID, "c1")
	p.u32(tagPid, 7)
	p.u64(tagStarted, 1)
	f.Add(append(header(opExit, 0, len(p)), p...))
	f.Add(append(header(opData, streamStdout, 4), "text"...))
	f.Add([]byte("short"))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decode(b)
		if err != nil {
			return
		}
		total := len(m.data)
		for _, v := range m.values {
			total += len(v)
		}
		if total > len(b) {
			t.Errorf("%d bytes of values in a message of %d", total, len(b))
		}
		_ = exitOf(m)
	})
}

func FuzzRecords(f *testing.F) {
	f.Add("1 7 256 0 1700000000000000000 1700000000000000001\n")
	f.Add("1 running 7 1234 1700000000000000000\n\n")
	f.Add("1 failed 0 0 0\nexec: \"x\": executable file not found in $PATH\n")
	f.Add("7 1234 6d2f2a5e-9a4e-4a7e-9f5e-111111111111\n")
	f.Add("7 (a) b) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4711 0 0")
	f.Fuzz(func(t *testing.T, s string) {
		if e, err := parseExit("c", s); err == nil && (e.Code < 0 || e.Code > 255) {
			t.Errorf("exit code is %d", e.Code)
		}
		_, _ = parseState("c", s)
		if i, err := parseIdentity(s); err == nil && i.pid <= 1 {
			t.Errorf("pid is %d", i.pid)
		}
		_, _ = parseStat([]byte(s))
	})
}

func FuzzSysctlPath(f *testing.F) {
	for _, s := range []string{"net.ipv4.ip_forward", "net/ipv4/conf/eth0.1/forwarding", "net.ipv4.conf.eth0/1.forwarding", "..", "/etc/passwd", "a.b=c"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := sysctlPath(s)
		if err != nil {
			return
		}
		if full := filepath.Join("/proc/sys", p); !strings.HasPrefix(full, "/proc/sys/") || full != "/proc/sys/"+p || strings.Contains(p, "=") {
			t.Errorf("%q becomes %q", s, p)
		}
	})
}

func TestSysctlPath(t *testing.T) {
	for s, want := range map[string]string{
		"net.ipv4.ip_forward":             "net/ipv4/ip_forward",
		"net/ipv4/conf/eth0.1/forwarding": "net/ipv4/conf/eth0.1/forwarding",
		"net.ipv4.conf.eth0/1.forwarding": "net/ipv4/conf/eth0.1/forwarding",
	} {
		if p, err := sysctlPath(s); err != nil || p != want {
			t.Errorf("%q becomes %q, %v", s, p, err)
		}
	}
}

func TestLastOfEqualVariablesWins(t *testing.T) {
	got := lastWins([]string{"A=1", "B=2", "A=3", "B=", "C"})
	if strings.Join(got, " ") != "A=3 B= C" {
		t.Errorf("variables are %q", got)
	}
}
