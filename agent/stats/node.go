package stats

import (
	"bytes"
	"math"
	"os"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cgroups"
)

// Node is what the node uses as a whole.
type Node struct {
	Figures
	// Available is what the kernel says could be had without swapping (MemAvailable), in bytes; kubelet's figure is
	// capacity less working set.
	Available uint64
	SwapTotal uint64
	SwapUsed  uint64
	Network   []Interface
	Default   string // interface of the default route
	Started   time.Time
	Processes uint64
	MaxPID    uint64
	Cores     int
	Self      Figures // this process's own group, if it has one
}

// node measures the node by the root of the hierarchy.
func (m *meter) node(seen map[string]bool) Node {
	n := Node{Cores: runtime.NumCPU()}
	n.Figures = m.figures("/", time.Time{}, seen, true)
	used := &n.Usage.Memory
	mem := meminfo()
	if used.Usage == 0 {
		used.Usage = used.RSS + used.Cache // v2 has no memory.current at its root
		used.WorkingSet = used.Usage - min(used.InactiveFile, used.Usage)
	}
	total := uint64(m.cfg.Memory)
	used.Limit, used.Available = total, total-min(used.WorkingSet, total)
	n.Available, n.SwapTotal = mem["MemAvailable"], mem["SwapTotal"]
	n.SwapUsed = n.SwapTotal - min(mem["SwapFree"], n.SwapTotal)
	n.Usage.Memory.OOMKills = m.round.OOMKills
	if n.Usage.PSI == nil {
		n.Usage.PSI = nodePressure(m.cfg.Groups.Mode())
	}
	if !m.round.Brief {
		n.Network, n.Default = nodeNetwork()
	}
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		n.Processes = uint64(info.Procs)
		n.Started = time.Now().Add(-time.Duration(info.Uptime) * time.Second).Truncate(time.Second)
	}
	n.MaxPID = min(number("/proc/sys/kernel/pid_max"), number("/proc/sys/kernel/threads-max"))
	if path, err := m.cfg.Groups.FromPid(os.Getpid()); err == nil && path != "/" {
		n.Self = m.figures(path, time.Time{}, seen, true)
	}
	return n
}

func nodeNetwork() (list []Interface, standard string) {
	if data, err := os.ReadFile("/proc/self/net/dev"); err == nil {
		list = nodeInterfaces(parseNetDev(data))
	}
	if data, err := os.ReadFile("/proc/self/net/route"); err == nil {
		standard = defaultInterface(data)
	}
	return list, standard
}

func meminfo() map[string]uint64 {
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return nil
	}
	return parseMeminfo(data)
}

// parseMeminfo is in bytes.
func parseMeminfo(data []byte) map[string]uint64 {
	out := map[string]uint64{}
	for line := range bytes.Lines(data) {
		f := bytes.Fields(line)
		if len(f) < 2 {
			continue
		}
		v, err := strconv.ParseUint(string(f[1]), 10, 64)
		if err != nil || v > math.MaxUint64>>10 {
			continue
		}
		out[string(bytes.TrimSuffix(f[0], []byte(":")))] = v << 10
	}
	return out
}

// nodePressure is the machine's where the root group has none.
func nodePressure(m cgroups.Mode) *cgroups.PSI {
	u, err := cgroups.ParseUsage(m, func(controller, file string) []byte {
		what, ok := bytes.CutSuffix([]byte(file), []byte(".pressure"))
		if controller != "" || !ok {
			return nil
		}
		data, err := os.ReadFile("/proc/pressure/" + string(what))
		if err != nil {
			return nil
		}
		return data
	})
	if err != nil {
		return nil
	}
	return u.PSI
}

// defaultInterface reads /proc/net/route, whose second column is the destination in hexadecimal.
func defaultInterface(route []byte) string {
	for line := range bytes.Lines(route) {
		f := bytes.Fields(line)
		if len(f) > 7 && string(f[1]) == "00000000" && string(f[7]) == "00000000" {
			return string(f[0])
		}
	}
	return ""
}

func number(path string) uint64 {
	data, err := os.ReadFile(path)
	if err != nil {
		return math.MaxUint64
	}
	v, err := strconv.ParseUint(string(bytes.TrimSpace(data)), 10, 64)
	if err != nil {
		return math.MaxUint64
	}
	return v
}

func kernelVersion() string { return oneLine("/proc/sys/kernel/osrelease") }

func oneLine(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(bytes.TrimSpace(data))
}
