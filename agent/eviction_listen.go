package agent

import (
	"errors"
	"time"

	"github.com/berth-node/berth/agent/pressure"
	"github.com/berth-node/berth/cgroups"
	kernel "github.com/berth-node/berth/cgroups/pressure"
	"github.com/berth-node/berth/eviction/sensor"
)

// stallTrigger says how much of the time tasks have to stand still for want of memory or disks that the node looks at
// what is left.
func stallTrigger() kernel.Trigger {
	return kernel.Trigger{Stall: 50 * time.Millisecond, Window: time.Second}
}

// busyTrigger is the same for processors, for which some wait on any node that has much to do.
func busyTrigger() kernel.Trigger {
	return kernel.Trigger{Stall: 500 * time.Millisecond, Window: time.Second}
}

// listener is what the kernel tells of what gets scarce. What it does not tell, or not to this process, the sensor
// finds out by looking.
type listener struct {
	sources, busy []sensor.Source
	alarms        []sensor.Alarm
	errs          []error
}

// hears says whether the kernel tells something; what it does not have is no error.
func (l *listener) hears(err error) bool {
	if err != nil && !errors.Is(err, kernel.ErrUnsupported) {
		l.errs = append(l.errs, err)
	}
	return err == nil
}

func (l *listener) source(s *kernel.Source, err error) {
	if l.hears(err) {
		l.sources = append(l.sources, s)
	}
}

// listenKernel opens what the kernel tells of memory and tasks: for the machine, and for all pods together.
func listenKernel(w *kernel.Watcher, h *cgroups.Hierarchy, pods string) listener {
	var l listener
	for _, file := range []string{"memory", "io"} {
		l.source(w.PSI("/proc/pressure/"+file, stallTrigger()))
	}
	// Who waits for a processor in a group waits on the machine: for some of its tasks the machine tells of groups too.
	if s, err := w.PSI("/proc/pressure/cpu", busyTrigger()); l.hears(err) {
		l.busy = append(l.busy, s)
	}
	if memory := h.MemoryDir(pods); h.Mode() == cgroups.Unified {
		l.unified(w, memory)
	} else {
		l.legacy(w, memory, h.MemoryDir("/"))
	}
	return l
}

// legacy listens to a v1 group, and to the root group.
func (l *listener) legacy(w *kernel.Watcher, pods, root string) {
	l.source(w.Level(pods, kernel.Medium))
	for _, dir := range []string{pods, root} {
		if u, err := w.Usage(dir); l.hears(err) {
			l.alarms = append(l.alarms, u)
		}
	}
}

// unified listens to a v2 group, and to the machine.
func (l *listener) unified(w *kernel.Watcher, pods string) {
	for _, resource := range []string{"memory", "io"} {
		l.source(w.PSI(pods+"/"+resource+".pressure", stallTrigger()))
	}
	for _, file := range []string{"memory.events", "pids.events"} {
		if c, err := w.Counters(pods + "/" + file); l.hears(err) {
			l.sources = append(l.sources, c)
		}
	}
	ofPods, err := w.GroupGrowth(pods, sensor.MemoryRate())
	if l.hears(err) {
		l.alarms = append(l.alarms, ofPods)
	}
	ofMachine, err := w.MachineGrowth(sensor.MemoryRate())
	if l.hears(err) {
		l.alarms = append(l.alarms, ofMachine)
	}
}

// unmark takes away what an older agent may have left on the group of all pods, for being told of their memory.
func (e *evictions) unmark() {
	if e.groups.Mode() != cgroups.Unified {
		return
	}
	switch was, err := kernel.Unmark(e.groups.MemoryDir(e.pods)); {
	case err != nil && !errors.Is(err, kernel.ErrUnsupported):
		e.log.Warn("pods may be slowed down by a memory.high that nobody needs", "error", err)
	case was != "":
		e.log.Info("memory.high of all pods is taken away, as nobody needs it", "was", was)
	}
}

// stalls are how much of the time tasks stand still, of the machine and of all pods.
func stalls(h *cgroups.Hierarchy, pods string) []pressure.Stall {
	var out []pressure.Stall
	for _, of := range []struct {
		name string
		read func(resource string) (cgroups.Pressure, error)
	}{
		{"node", cgroups.MachinePressure},
		{"pods", func(resource string) (cgroups.Pressure, error) { return h.Pressure(pods, resource) }},
	} {
		for _, resource := range []string{"memory", "io", "cpu"} {
			if p, err := of.read(resource); err == nil { // else it is not counted
				out = append(out, pressure.Stall{For: resource, Of: of.name, Some: p.Some.Avg10, All: p.Full.Avg10})
			}
		}
	}
	return out
}
