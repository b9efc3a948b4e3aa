package keeper_test

import (
	"bytes"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cri/keeper"
)

func BenchmarkStart(b *testing.B) {
	p := newPod(b)
	var all []*keeper.Keeper
	stop := func() {
		for _, k := range all {
			if err := k.Stop(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
		all = nil
	}
	for i := 0; b.Loop(); i++ {
		c := p.config
		c.Dir = p.dir + "/k" + strconv.Itoa(i)
		if err := os.Mkdir(c.Dir, 0o700); err != nil {
			b.Fatal(err)
		}
		k, err := keeper.Start(b.Context(), c)
		if err != nil {
			b.Fatal(err)
		}
		if all = append(all, k); len(all) == 100 {
			b.StopTimer()
			b.ReportMetric(pss(b, all), "PSS-KiB/keeper")
			stop()
			b.StartTimer()
		}
	}
	stop()
}

// pss is the mean of what each of the keepers adds to the memory in use.
func pss(b *testing.B, all []*keeper.Keeper) float64 {
	total := 0.0
	for _, k := range all {
		text, err := os.ReadFile("/proc/" + strconv.Itoa(k.Pid()) + "/smaps_rollup")
		if err != nil {
			b.Fatal(err)
		}
		for line := range bytes.SplitSeq(text, []byte("\n")) {
			f := bytes.Fields(line)
			if len(f) == 3 && string(f[0]) == "Pss:" {
				n, _ := strconv.Atoi(string(f[1]))
				total += float64(n)
			}
		}
	}
	return total / float64(max(len(all), 1))
}

func BenchmarkRun(b *testing.B) {
	p := newPod(b)
	before := family(b, p.Pid())
	defer func() { b.ReportMetric((family(b, p.Pid())-before)/float64(b.N)*1e6, "cpu-µs/op") }()
	for b.Loop() {
		b.StopTimer()
		c := p.container(p.spec("c", "/bin/sleep", "1000"))
		b.StartTimer()
		if _, err := p.Run(b.Context(), c); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := p.Signal(b.Context(), c.ID, unix.SIGKILL); err != nil {
			b.Fatal(err)
		}
		p.exit(c.ID)
		if err := p.Forget(c.ID); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

// BenchmarkFirstRun is the start of a pod's first container, some time after
// the keeper's: the agent makes a network and a root file system in between.
func BenchmarkFirstRun(b *testing.B) {
	p := newPod(b)
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		c := p.config
		c.Dir = p.dir + "/k" + strconv.Itoa(i)
		if err := os.Mkdir(c.Dir, 0o700); err != nil {
			b.Fatal(err)
		}
		k, err := keeper.Start(b.Context(), c)
		if err != nil {
			b.Fatal(err)
		}
		ctr := p.container(p.spec("c", "/bin/sleep", "1000"))
		time.Sleep(15 * time.Millisecond)
		b.StartTimer()
		if _, err := k.Run(b.Context(), ctr); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := k.Stop(b.Context()); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

// command is what is executed again and again. What it took of the CPU, with the keeper's part, is to be reported in
// the end.
func command(b *testing.B) (p *pod, e keeper.Exec, report func()) {
	b.Helper()
	p = newPod(b)
	id, pid := p.sh("sleep 1000")
	e = keeper.Exec{ContainerID: id, Pid: pid, Process: p.spec(id, "/bin/true").Process}
	before := family(b, p.Pid())
	return p, e, func() { b.ReportMetric((family(b, p.Pid())-before)/float64(b.N)*1e6, "cpu-µs/op") }
}

func BenchmarkExec(b *testing.B) {
	p, e, report := command(b)
	defer report()
	for b.Loop() {
		proc, err := p.Exec(b.Context(), e)
		if err != nil {
			b.Fatal(err)
		}
		if exit, err := proc.Wait(b.Context()); err != nil || exit.Code != 0 {
			b.Fatal(exit, err)
		}
		proc.Close()
	}
}

// BenchmarkCapture is what the keeper's part of a probe takes, without the joining of cgroups.
func BenchmarkCapture(b *testing.B) {
	p, e, report := command(b)
	defer report()
	for b.Loop() {
		if exit, err := p.Capture(b.Context(), e, io.Discard, io.Discard); err != nil || exit.Code != 0 {
			b.Fatal(exit, err)
		}
	}
}

// BenchmarkLog copies 256 MiB from a container into its log, rotated, and
// reports what of a core the keeper needs at 100 MB/s.
func BenchmarkLog(b *testing.B) {
	for name, script := range map[string]string{
		"4KiB writes":    "exec dd if=/lines bs=4k 2>/dev/null",
		"100 byte lines": "exec cat /lines",
	} {
		b.Run(name, func(b *testing.B) {
			const size = 256 << 20
			p := newPod(b)
			line := strings.Repeat("x", 99) + "\n"
			if name == "4KiB writes" {
				line = strings.Repeat("x", 4095) + "\n"
			}
			write(b, p.rootfs+"/lines", strings.Repeat(line, size/len(line)), 0o644)
			for b.Loop() {
				before := cpu(b, p.Pid())
				c := p.container(p.spec("c", "/bin/sh", "-c", script))
				c.LogMaxSize, c.LogMaxFiles = 10<<20, 3
				if _, err := p.Run(b.Context(), c); err != nil {
					b.Fatal(err)
				}
				p.exit(c.ID)
				b.ReportMetric((cpu(b, p.Pid())-before)/(size/100e6)*100, "%core@100MB/s")
			}
			b.SetBytes(size)
		})
	}
}

// cpu is what a process has used, in seconds.
func cpu(b *testing.B, pid int) float64 {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/schedstat")
	if err != nil {
		b.Fatal(err)
	}
	n, err := strconv.ParseFloat(string(bytes.Fields(text)[0]), 64)
	if err != nil {
		b.Fatal(err)
	}
	return n / 1e9
}

// family is what a process and its reaped descendants have used, in seconds.
func family(b *testing.B, pid int) float64 {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		b.Fatal(err)
	}
	total := 0.0
	for _, f := range bytes.Fields(text[bytes.LastIndexByte(text, ')'):])[12:16] {
		n, _ := strconv.ParseFloat(string(f), 64)
		total += n / 100 // clock ticks
	}
	return total
}
