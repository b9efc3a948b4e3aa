package cli

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/docker/go-units"

	"github.com/berth-node/berth/agent/api"
)

// noDrivers is said in the place of a table that has no row.
const noDrivers = "No CSI driver has registered."

func tableVolumes(w io.Writer, s *api.VolumeState) {
	if len(s.Drivers) == 0 {
		fmt.Fprintln(w, noDrivers)
	} else {
		fmt.Fprintln(w, "DRIVER\tVERSION\tSTATUS\tENDPOINT")
	}
	for _, d := range s.Drivers {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", oneLine(d.Name), cmp.Or(oneLine(d.Version), "<none>"), oneLine(driverStatus(&d)), oneLine(d.Endpoint))
	}
	if len(s.Claims) > 0 {
		fmt.Fprintln(w, "\nKIND\tCLAIM\tCLASS\tATTRIBUTES\tSIZE\tSTATUS\tDRIVER")
	}
	for _, c := range s.Claims {
		status := c.Status
		if c.Left != "" {
			status += " (deleted in " + c.Left + ")"
		}
		if c.Error != "" {
			status += ": " + c.Error
		}
		fmt.Fprintf(w, "%s\t%s/%s\t%s\t%s\t%s\t%s\t%s\n", c.Kind, oneLine(c.Namespace), oneLine(c.Claim), oneLine(c.Class),
			cmp.Or(oneLine(c.Attributes), "<none>"), units.BytesSize(float64(c.Bytes)), oneLine(status), oneLine(c.Driver))
		for _, m := range c.Members {
			fmt.Fprintf(w, "snapshot\t%s/%s\t%s\t<none>\t%s\tof %s/%s, of volume %s\t%s\n", oneLine(c.Namespace), oneLine(m.Snapshot), oneLine(c.Class),
				units.BytesSize(float64(m.Bytes)), oneLine(c.Namespace), oneLine(c.Claim), oneLine(m.Claim), oneLine(c.Driver))
		}
	}
	if len(s.Mounts) > 0 {
		fmt.Fprintln(w, "\nVOLUME\tPODS\tSTATUS\tUSED\tCAPACITY\tHEALTH\tDRIVER")
	}
	for _, m := range s.Mounts {
		var pods []string
		for _, u := range m.Pods {
			pods = append(pods, u.Pod)
		}
		used, capacity := "<unknown>", "<unknown>"
		if m.Used != nil {
			used = units.BytesSize(float64(*m.Used))
		}
		if m.Capacity > 0 {
			capacity = units.BytesSize(float64(m.Capacity))
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", oneLine(m.Name), cmp.Or(oneLine(strings.Join(pods, ",")), "<none>"),
			oneLine(mountStatus(&m)), used, capacity, oneLine(mountHealth(&m)), oneLine(m.Driver))
	}
}

func driverStatus(d *api.VolumeDriver) string {
	switch {
	case d.Refused != "":
		return "Refused: " + d.Refused
	case !d.Connected:
		return "NotAnswering"
	}
	return "Connected"
}

func mountStatus(m *api.VolumeMount) string {
	half := m.Stage != "" && !m.Staged || slices.ContainsFunc(m.Pods, func(u api.VolumeUse) bool { return !u.Published })
	status := "Published"
	if half {
		status = "HalfDone"
	}
	if m.Error != "" {
		status += ": " + m.Error
	}
	return status
}

func mountHealth(m *api.VolumeMount) string {
	switch {
	case m.Healthy == nil:
		return "<unknown>"
	case *m.Healthy:
		return "Normal"
	}
	return "Abnormal: " + m.Health
}

func tableDrivers(w io.Writer, all []api.VolumeDriver) {
	if len(all) == 0 {
		fmt.Fprintln(w, noDrivers)
		return
	}
	fmt.Fprintln(w, "DRIVER\tVERSION\tSTATUS\tNODE-ID\tVOLUMES\tTOPOLOGY\tENDPOINT")
	for _, d := range all {
		volumes := fmt.Sprint(d.Volumes)
		if d.MaxVolumes != nil {
			volumes = fmt.Sprintf("%d of %d", d.Volumes, *d.MaxVolumes)
		}
		var topology []string
		for _, k := range slices.Sorted(maps.Keys(d.Topology)) {
			topology = append(topology, k+"="+d.Topology[k])
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", oneLine(d.Name), cmp.Or(oneLine(d.Version), "<none>"), oneLine(driverStatus(&d)),
			cmp.Or(oneLine(d.NodeID), "<none>"), volumes, cmp.Or(oneLine(strings.Join(topology, ",")), "<none>"), oneLine(d.Endpoint))
	}
}

func tableFindings(w io.Writer, found []api.VolumeFinding) {
	if len(found) == 0 {
		fmt.Fprintln(w, "All is as the records say.")
	}
	for _, f := range found {
		what := f.What
		if f.Undone {
			what = "undone"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", oneLine(what), cmp.Or(oneLine(f.Driver), "<none>"), cmp.Or(oneLine(f.Path), "<none>"), oneLine(f.Text))
	}
}
