package class

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/opencontainers/runtime-spec/specs-go"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/berth-node/berth/internal/quantity"
)

// file is the classes of block I/O as people write them:
//
//	Classes:
//	  slow:
//	  - Weight: 50                  # 10 to 1000, of all devices that are not named
//	  - Devices: [/dev/sd[a-z]]     # patterns of paths; links are followed
//	    ThrottleReadBps: 50M        # bytes in a second
//	    ThrottleWriteBps: 10M
//	    ThrottleReadIOPS: 10k       # operations in a second
//	    ThrottleWriteIOPS: 5k
//	    Weight: 20                  # needs the I/O scheduler BFQ
type file struct {
	Classes map[string][]entry `json:"Classes"`
}

type entry struct {
	Devices           []string
	Weight            *resource.Quantity
	ThrottleReadBps   *resource.Quantity
	ThrottleWriteBps  *resource.Quantity
	ThrottleReadIOPS  *resource.Quantity
	ThrottleWriteIOPS *resource.Quantity
}

// devices is one entry, checked; of the numbers nil is nothing said.
type devices struct {
	patterns                               []string
	weight                                 *uint16
	readBps, writeBps, readIOPS, writeIOPS *uint64
}

func parse(b []byte) (map[string][]devices, error) {
	f := &file{}
	doc, err := yaml.YAMLToJSONStrict(b)
	if err != nil {
		return nil, err
	}
	if errs := quantity.CheckJSON(doc, f); len(errs) > 0 {
		return nil, errs.ToAggregate()
	}
	// Unlike the YAML library's own, these errors say where the field is.
	strict, err := json.UnmarshalStrict(doc, f)
	if err = errors.Join(append(strict, err)...); err != nil {
		return nil, err
	}
	out := map[string][]devices{}
	var errs []error
	for name, entries := range f.Classes {
		out[name] = nil
		for i, e := range entries {
			d, err := e.check()
			if err != nil {
				errs = append(errs, fmt.Errorf("Classes.%s[%d].%w", name, i, err))
			}
			out[name] = append(out[name], d)
		}
	}
	return out, errors.Join(errs...)
}

// check's error begins with the name of the field.
func (e entry) check() (devices, error) {
	d := devices{patterns: e.Devices}
	for i, p := range e.Devices {
		if _, err := filepath.Match(p, ""); err != nil || !filepath.IsAbs(p) {
			return d, fmt.Errorf("Devices[%d]: %q: must be an absolute path or a pattern of such", i, p)
		}
	}
	if q := e.Weight; q != nil {
		v, whole := q.AsInt64()
		if !whole || v < 10 || v > 1000 {
			return d, fmt.Errorf("Weight: %s: must be a number from 10 to 1000", q)
		}
		w := uint16(v)
		d.weight = &w
	}
	for _, r := range []struct {
		name string
		q    *resource.Quantity
		to   **uint64
	}{
		{"ThrottleReadBps", e.ThrottleReadBps, &d.readBps},
		{"ThrottleWriteBps", e.ThrottleWriteBps, &d.writeBps},
		{"ThrottleReadIOPS", e.ThrottleReadIOPS, &d.readIOPS},
		{"ThrottleWriteIOPS", e.ThrottleWriteIOPS, &d.writeIOPS},
	} {
		if r.q == nil {
			continue
		}
		v, whole := r.q.AsInt64()
		if !whole || v < 0 {
			return d, fmt.Errorf("%s: %s: must be a whole number, not negative (0: no limit)", r.name, r.q)
		}
		if len(e.Devices) == 0 {
			return d, fmt.Errorf("%s: needs Devices, since the kernel limits each device on its own", r.name)
		}
		rate := uint64(v)
		*r.to = &rate
	}
	return d, nil
}

// add adds the settings to those of the entries before, over which they go.
func (d devices) add(to *specs.LinuxBlockIO) error {
	if len(d.patterns) == 0 {
		if d.weight != nil {
			to.Weight = d.weight
		}
		return nil
	}
	for _, p := range d.patterns {
		paths, err := filepath.Glob(p)
		if err != nil {
			return err
		}
		for _, path := range paths {
			major, minor, err := number(path)
			if err != nil {
				return err
			}
			d.addTo(to, major, minor)
		}
	}
	return nil
}

func (d devices) addTo(to *specs.LinuxBlockIO, major, minor int64) {
	if d.weight != nil {
		w := specs.LinuxWeightDevice{Weight: d.weight}
		w.Major, w.Minor = major, minor
		to.WeightDevice = replace(to.WeightDevice, w, func(w specs.LinuxWeightDevice) bool { return w.Major == major && w.Minor == minor })
	}
	rate := func(list *[]specs.LinuxThrottleDevice, v *uint64) {
		if v == nil {
			return
		}
		t := specs.LinuxThrottleDevice{Rate: *v}
		t.Major, t.Minor = major, minor
		*list = replace(*list, t, func(t specs.LinuxThrottleDevice) bool { return t.Major == major && t.Minor == minor })
	}
	rate(&to.ThrottleReadBpsDevice, d.readBps)
	rate(&to.ThrottleWriteBpsDevice, d.writeBps)
	rate(&to.ThrottleReadIOPSDevice, d.readIOPS)
	rate(&to.ThrottleWriteIOPSDevice, d.writeIOPS)
}

func replace[T any](list []T, v T, same func(T) bool) []T {
	for i := range list {
		if same(list[i]) {
			list[i] = v
			return list
		}
	}
	return append(list, v)
}
