package stats

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"sync"

	"github.com/berth-node/berth/cgroups"
)

// devices knows of groups what went to and from each block device, which is read only for who asks and when it has
// changed in sum.
type devices struct {
	mu    sync.Mutex
	of    map[string]deviceUse // by group
	names map[[2]uint32]string
}

type deviceUse struct {
	sum  cgroups.IO
	each []cgroups.DeviceIO
}

// get is what the group with those figures did. One that is gone did nothing.
func (d *devices) get(h *cgroups.Hierarchy, f *Figures) []cgroups.DeviceIO {
	if f.Usage.IO == (cgroups.IO{}) {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	u, ok := d.of[f.Path]
	if !ok || u.sum != f.Usage.IO {
		each, err := h.Devices(f.Path)
		if err != nil {
			return nil
		}
		u = deviceUse{f.Usage.IO, each}
		if d.of == nil {
			d.of = map[string]deviceUse{}
		}
		d.of[f.Path] = u
	}
	return u.each
}

// keep forgets the groups that are not among those told of.
func (d *devices) keep(seen map[string]bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for path := range d.of {
		if !seen[path] {
			delete(d.of, path)
		}
	}
}

// name is the device's file, "/dev/sda"; of one that the kernel does not tell of any more its numbers.
func (d *devices) name(major, minor uint32) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	key := [2]uint32{major, minor}
	if n, ok := d.names[key]; ok {
		return n
	}
	numbers := fmt.Sprintf("%d:%d", major, minor)
	data, err := os.ReadFile("/sys/dev/block/" + numbers + "/uevent")
	if err != nil {
		return numbers
	}
	n := deviceName(data)
	if n == "" {
		n = numbers
	}
	if d.names == nil {
		d.names = map[[2]uint32]string{}
	}
	d.names[key] = n
	return n
}

// deviceName reads a device's uevent: lines of "KEY=value", of which DEVNAME is the file below /dev.
func deviceName(data []byte) string {
	for line := range bytes.Lines(data) {
		if name, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("DEVNAME=")); ok && len(name) > 0 {
			return "/dev/" + string(name)
		}
	}
	return ""
}

func decimal(n uint32) string { return strconv.FormatUint(uint64(n), 10) }
