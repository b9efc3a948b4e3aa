package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// count is what was done so far: what the API server has answered, by who asks for what, and CPU time by whose it is.
// Unlike times of the clock, it is hardly other on a machine that does something else as well.
type count struct {
	requests map[string]float64 // "PATCH pods/status"
	cpu      map[string]float64 // seconds
}

// mine are requests of this program, or of everybody who comes to know the server.
var mine = map[string]bool{"POST pods": true, "GET ": true, "GET /openapi/v3": true}

var label = regexp.MustCompile(`(\w+)="([^"]*)"`)

// count reads the counters, of the API server and of the kernel.
func (b *bench) count(ctx context.Context, n node) (count, error) {
	c := count{requests: map[string]float64{}, cpu: map[string]float64{}}
	text, err := b.client.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return c, err
	}
	for s := bufio.NewScanner(bytes.NewReader(text)); s.Scan(); {
		line := s.Text()
		if !strings.HasPrefix(line, "apiserver_request_total{") {
			continue
		}
		v, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
		if err != nil {
			return c, fmt.Errorf("read %q: %w", line, err)
		}
		l := map[string]string{}
		for _, m := range label.FindAllStringSubmatch(line, -1) {
			l[m[1]] = m[2]
		}
		what := l["verb"] + " " + l["resource"]
		if l["subresource"] != "" {
			what += "/" + l["subresource"]
		}
		c.requests[what] += v
	}
	for name, pids := range n.Processes() {
		for _, pid := range pids {
			s, err := processor(pid)
			if err != nil {
				return c, err
			}
			c.cpu[name] += s
		}
	}
	if c.cpu["API server"], err = processor(b.control.Process.Pid); err != nil {
		return c, err
	}
	c.cpu["whole node"], err = nodeProcessor()
	return c, err
}

// nodeProcessor is how long all of a node has had a processor.
func nodeProcessor() (sum float64, err error) {
	for _, group := range []string{programs, cgroup} {
		s, err := groupProcessor(group)
		if err != nil {
			return 0, err
		}
		sum += s
	}
	return sum, nil
}

// writes says whether requests of a kind change something.
func writes(what string) bool {
	verb, _, _ := strings.Cut(what, " ")
	return slices.Contains([]string{"POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION"}, verb)
}

// events says whether they are of events, which are no writes of a pod.
func events(what string) bool { return strings.HasSuffix(what, " events") }

// counted records what came to be between two counts, for each of some pods.
func (b *bench) counted(n node, phase string, from, to count, pods int) {
	each := func(now, before float64) float64 { return (now - before) / float64(pods) }
	of := func(take func(what string) bool) (sum float64) {
		for what, v := range to.requests {
			if take(what) && !mine[what] {
				sum += each(v, from.requests[what])
			}
		}
		return sum
	}
	own := 0.0
	if to.requests["DELETE pods"] > from.requests["DELETE pods"] {
		own = 1 // who deletes pods is this program, the first time
	}
	b.figures.record(n, phase+": writes a pod, but events", "", of(func(what string) bool { return writes(what) && !events(what) })-own)
	b.figures.record(n, phase+": requests a pod in all", "", of(func(string) bool { return true })-own)
	for _, what := range slices.Sorted(maps.Keys(to.requests)) {
		if v := each(to.requests[what], from.requests[what]); v >= 0.05 && !mine[what] {
			b.figures.record(n, phase+": of them "+what, "", v)
		}
	}
	for _, who := range slices.Sorted(maps.Keys(to.cpu)) {
		b.figures.record(n, phase+": CPU time a pod, "+who, "ms", each(to.cpu[who], from.cpu[who])*1000)
	}
}

// ticks are those of a second in /proc, on every architecture of Linux that Go knows.
const ticks = 100

// processor is how long a process has had a processor, in seconds.
func processor(pid int) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The name, which is in parentheses, may have spaces.
	f := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	var sum float64
	for _, i := range []int{11, 12} {
		v, err := strconv.ParseFloat(f[i], 64)
		if err != nil {
			return 0, fmt.Errorf("read /proc/%d/stat: %w", pid, err)
		}
		sum += v / ticks
	}
	return sum, nil
}

// groupProcessor is how long the processes of a group, and of those in it, have had a processor, those that are gone,
// too.
func groupProcessor(group string) (float64, error) {
	if text, err := os.ReadFile("/sys/fs/cgroup/cpuacct" + group + "/cpuacct.usage"); err == nil {
		v, err := strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
		return v / 1e9, err
	}
	text, err := os.ReadFile("/sys/fs/cgroup" + group + "/cpu.stat")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, "usage_usec "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(v), 64)
			return v / 1e6, err
		}
	}
	return 0, fmt.Errorf("cpu.stat of %s has no usage", group)
}

// programs is the group of what makes the node, beside that of its pods.
const programs = "/berth-bench-programs"

// enroll has a process, and what it starts, be counted.
func enroll(pid int) error {
	root := "/sys/fs/cgroup"
	if fileExists(root + "/cpuacct/cgroup.procs") {
		root += "/cpuacct"
	}
	if err := os.MkdirAll(root+programs, 0o755); err != nil {
		return err
	}
	return os.WriteFile(root+programs+"/cgroup.procs", strconv.AppendInt(nil, int64(pid), 10), 0o644)
}

// discharge removes the group.
func discharge() {
	for _, c := range controllers() {
		_ = os.Remove(c + programs)
	}
}

// memory is what processes have in it, in MB: each one's own, and its share of what several have.
type memory struct{ all, anonymous float64 }

func resident(pids []int) (m memory, err error) {
	for _, pid := range pids {
		text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "smaps_rollup"))
		if err != nil {
			return m, err
		}
		for line := range strings.Lines(string(text)) {
			for prefix, to := range map[string]*float64{"Pss:": &m.all, "Pss_Anon:": &m.anonymous} {
				if v, ok := strings.CutPrefix(line, prefix); ok {
					kb, err := strconv.ParseFloat(strings.Fields(v)[0], 64)
					if err != nil {
						return m, fmt.Errorf("read %q: %w", line, err)
					}
					*to += kb / 1024
				}
			}
		}
	}
	return m, nil
}

// remembered records the memory of a node.
func (b *bench) remembered(n node, with string, pids []int) error {
	m, err := resident(pids)
	if err != nil {
		return err
	}
	b.figures.record(n, "memory with "+with, "MB", m.all)
	b.figures.record(n, "memory with "+with+", but files", "MB", m.anonymous)
	return nil
}
