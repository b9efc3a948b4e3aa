package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// processes are those of a control plane.
type processes []*exec.Cmd

func (p *processes) begin(dir, name string, args ...string) error {
	out, err := os.Create(filepath.Join(dir, filepath.Base(name)+".log"))
	if err != nil {
		return err
	}
	defer out.Close()
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		return err
	}
	*p = append(*p, cmd)
	return nil
}

func (p processes) stop() {
	for _, cmd := range p {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

// cpu is the time that the processes have run.
func (p processes) cpu() (time.Duration, error) {
	var all time.Duration
	for _, cmd := range p {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
		if err != nil {
			return 0, err
		}
		f := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
		for _, i := range []int{11, 12} { // user and system, in ticks of 10 ms
			n, err := strconv.Atoi(f[i])
			if err != nil {
				return 0, err
			}
			all += time.Duration(n) * 10 * time.Millisecond
		}
	}
	return all, nil
}

// since is for how many milliseconds the processes have run since then.
func (p processes) since(before time.Duration) (float64, error) {
	after, err := p.cpu()
	return (after - before).Seconds() * 1000, err
}

// rss is the resident memory of the processes in MB.
func (p processes) rss() (float64, error) { return p.memory("VmRSS:") }

// peak is the most resident memory that the processes have had, in MB.
func (p processes) peak() (float64, error) { return p.memory("VmHWM:") }

func (p processes) memory(field string) (float64, error) {
	var all float64
	for _, cmd := range p {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
		if err != nil {
			return 0, err
		}
		_, rest, ok := strings.Cut(string(data), field)
		if !ok {
			return 0, fmt.Errorf("read memory of %d: no %s", cmd.Process.Pid, field)
		}
		kb, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
		if err != nil {
			return 0, err
		}
		all += kb * 1024 / 1e6
	}
	return all, nil
}
