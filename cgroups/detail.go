package cgroups

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Detail is what the kernel tells of a group beside [Usage]: its limits, and use by device and page size. Nobody
// decides anything by it, so it is read for who asks, with a file opened for each value.
type Detail struct {
	CPUShares    uint64 // on v2 the share that gives cpu.weight
	CPUQuotaUs   uint64 // 0 = none
	CPUPeriodUs  uint64
	KernelMemory uint64 // bytes
	Reservation  uint64 // bytes of memory that are protected, or v1's soft limit; 0 = none
	SwapLimit    uint64 // bytes: of memory and swap together on v1, of swap alone on v2; NoLimit without one
	Devices      []DeviceIO
	Hugepages    []Hugepages
	SwapKnown    bool // swap is accounted
}

// DeviceIO is what went to and from one block device.
type DeviceIO struct {
	Major, Minor uint32
	IO
}

// Hugepages is the use of one size of them, in bytes.
type Hugepages struct {
	Size       string // as the kernel writes it: "2MB"
	Usage, Max uint64
}

// Detail reads the details of a group. What a kernel lacks is 0.
func (h *Hierarchy) Detail(path string) (Detail, error) {
	path = clean(path)
	if !h.Exists(path) {
		return Detail{}, fmt.Errorf("measure group %s: %w", path, unix.ENOENT)
	}
	var d Detail
	r := fileReader{h: h, path: path}
	if h.mode == Unified {
		r.v2(&d)
	} else {
		r.v1(&d)
	}
	d.Hugepages = r.hugepages(h.mode)
	return d, r.err
}

// Devices reads what went to and from each block device: not every write, as those that the kernel does later for a v1
// group count for nobody.
func (h *Hierarchy) Devices(path string) ([]DeviceIO, error) {
	r := fileReader{h: h, path: clean(path)}
	out := r.devices()
	return out, r.err
}

func (r *fileReader) devices() []DeviceIO {
	if r.h.mode == Unified {
		return devicesOfIOStat(r.read("io", "io.stat"))
	}
	return devicesOfBlkio(r.read("blkio", "blkio.throttle.io_service_bytes_recursive"), r.read("blkio", "blkio.throttle.io_serviced_recursive"))
}

// fileReader reads small files of one group and keeps the first error.
type fileReader struct {
	h    *Hierarchy
	path string
	err  error
}

// read is nil for a file that is not there.
func (r *fileReader) read(controller, name string) []byte {
	dir := r.h.Dir(controller, r.path)
	if dir == "" {
		return nil
	}
	b, err := os.ReadFile(dir + "/" + name)
	if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.EOPNOTSUPP) && r.err == nil {
		r.err = fmt.Errorf("measure group %s: %w", r.path, err)
	}
	return b
}

// number is 0 for a file that is not there, and for v1's -1.
func (r *fileReader) number(controller, name string) uint64 {
	n, err := ParseNumber(r.read(controller, name))
	if err != nil {
		return 0
	}
	return n
}

func (r *fileReader) v1(d *Detail) {
	d.CPUShares = r.number("cpu", "cpu.shares")
	d.CPUQuotaUs = r.number("cpu", "cpu.cfs_quota_us")
	d.CPUPeriodUs = r.number("cpu", "cpu.cfs_period_us")
	d.KernelMemory = r.number("memory", "memory.kmem.usage_in_bytes")
	if d.Reservation = r.number("memory", "memory.soft_limit_in_bytes"); d.Reservation == NoLimit {
		d.Reservation = 0
	}
	swap := r.read("memory", "memory.memsw.limit_in_bytes")
	d.SwapLimit, d.SwapKnown = NoLimit, len(swap) > 0
	if n, err := ParseNumber(swap); err == nil {
		d.SwapLimit = n
	}
	d.Devices = r.devices()
}

func (r *fileReader) v2(d *Detail) {
	d.CPUShares = sharesOf(r.number("cpu", "cpu.weight"))
	if quota, period, err := parseCPUMax(r.read("cpu", "cpu.max")); err == nil {
		d.CPUPeriodUs = period
		if quota != NoLimit {
			d.CPUQuotaUs = quota
		}
	}
	d.KernelMemory = field(r.read("memory", "memory.stat"), "kernel")
	d.Reservation = r.number("memory", "memory.low")
	swap := r.read("memory", "memory.swap.max")
	d.SwapLimit, d.SwapKnown = NoLimit, len(swap) > 0
	if n, err := ParseNumber(swap); err == nil {
		d.SwapLimit = n
	}
	d.Devices = r.devices()
}

// sharesOf is the least of v1's shares that gives this weight, by the formula that OCI runtimes have agreed on; 0 for
// none.
func sharesOf(weight uint64) uint64 {
	if weight == 0 {
		return 0
	}
	return 2 + (weight-1)*262142/9999
}

// hugepages lists the sizes the kernel has files of.
func (r *fileReader) hugepages(m Mode) []Hugepages {
	dir := r.h.Dir("hugetlb", r.path)
	if dir == "" {
		return nil
	}
	current, peak := ".current", "" // v2 keeps no peak
	if m != Unified {
		current, peak = ".usage_in_bytes", ".max_usage_in_bytes"
	}
	files, _ := filepath.Glob(dir + "/hugetlb.*" + current)
	var out []Hugepages
	for _, f := range files {
		size := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(f), "hugetlb."), current)
		if strings.Contains(size, ".") {
			continue // "2MB.rsvd", the reservations
		}
		p := Hugepages{Size: size, Usage: r.number("hugetlb", filepath.Base(f))}
		if p.Max = p.Usage; peak != "" {
			p.Max = r.number("hugetlb", "hugetlb."+size+peak)
		}
		out = append(out, p)
	}
	return out
}

// devicesOfIOStat reads v2's io.stat, see parseIOStat.
func devicesOfIOStat(data []byte) []DeviceIO {
	var out []DeviceIO
	for line := range bytes.Lines(data) {
		dev, rest, _ := bytes.Cut(line, []byte{' '})
		d, ok := deviceOf(dev)
		if !ok {
			continue
		}
		parseIOStat(rest, &d.IO)
		out = append(out, d)
	}
	return out
}

// devicesOfBlkio reads v1's pair of files, see parseBlkio.
func devicesOfBlkio(size, count []byte) []DeviceIO {
	var out []DeviceIO
	add := func(data []byte, set func(io *IO, read, write uint64)) {
		for line := range bytes.Lines(data) {
			dev, rest, _ := bytes.Cut(line, []byte{' '})
			d, ok := deviceOf(dev)
			if !ok {
				continue
			}
			i := slices.IndexFunc(out, func(o DeviceIO) bool { return o.Major == d.Major && o.Minor == d.Minor })
			if i < 0 {
				i, out = len(out), append(out, d)
			}
			read, write := parseBlkio(append([]byte{' '}, rest...))
			set(&out[i].IO, read, write)
		}
	}
	add(size, func(io *IO, r, w uint64) { io.ReadBytes += r; io.WriteBytes += w })
	add(count, func(io *IO, r, w uint64) { io.ReadOps += r; io.WriteOps += w })
	return out
}

func deviceOf(b []byte) (d DeviceIO, ok bool) {
	major, minor, ok := strings.Cut(string(b), ":")
	if !ok {
		return d, false
	}
	ma, err1 := strconv.ParseUint(major, 10, 32)
	mi, err2 := strconv.ParseUint(minor, 10, 32)
	return DeviceIO{Major: uint32(ma), Minor: uint32(mi)}, err1 == nil && err2 == nil
}
