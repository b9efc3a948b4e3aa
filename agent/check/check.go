package check

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/agent/config"
	"github.com/berth-node/berth/cgroups"
)

// Config says where the node will live, as some features depend on the file system.
type Config struct {
	RootDir     string  // default /var/lib/berth; need not exist
	CgroupMount string  // default /sys/fs/cgroup
	ConfigFile  string  // of the agent; default those in the usual places, where they are
	ConfigDir   string  // more of them
	Pods        Pods    // nil: no agent is asked
	Cluster     Cluster // nil, too
	Upgrade     Upgrade // nil, too
	RunDir      string  // of the agent of this machine; default /run/berth

	// Starting is the agent that is about to be started here, nil when none is: what keeps it from starting is required
	// not to be there.
	Starting *config.Config
}

// answer is what a probe found.
type answer struct {
	status Status
	found  string
}

func ok(format string, args ...any) answer      { return answer{OK, fmt.Sprintf(format, args...)} }
func limited(format string, args ...any) answer { return answer{Limited, fmt.Sprintf(format, args...)} }

func missing(format string, args ...any) answer { return answer{Missing, fmt.Sprintf(format, args...)} }

// tried turns the error of a real attempt into an answer.
func tried(err error, found string) answer {
	if err != nil {
		return missing("%v", err)
	}
	return ok("%s", found)
}

// probe is one row to be: its run tries the feature and leaves nothing behind.
type probe struct {
	name     string
	required bool
	cost     string // what does not work without it, a sentence
	run      func(ctx context.Context, e *env) answer
}

// env is what probes share.
type env struct {
	dir    string // an existing directory on the file system of RootDir
	mount  string
	h      *cgroups.Hierarchy
	hErr   error
	status string // /proc/self/status

	config, configDir string
	pods              Pods
	cluster           Cluster
	upgrade           Upgrade

	proc, kubelet string // where processes are, and kubelet's own directory
	agent         config.Config
	starting      bool
}

// Run tries everything. It never fails: what cannot be tried is missing, with the reason.
func Run(ctx context.Context, c Config) Report {
	agent := c.agent()
	if c.RootDir == "" {
		c.RootDir = agent.RootDir
	}
	e := &env{
		dir: existing(c.RootDir), mount: c.CgroupMount, config: c.ConfigFile, configDir: c.ConfigDir, pods: c.Pods, cluster: c.Cluster, upgrade: c.Upgrade,
		proc: "/proc", kubelet: config.DefaultKubeletDir, agent: agent, starting: c.Starting != nil,
	}
	e.h, e.hErr = cgroups.Open(c.CgroupMount)
	if data, err := os.ReadFile("/proc/self/status"); err == nil {
		e.status = string(data)
	}
	return run(ctx, probes(e.starting), e)
}

// agent is the configuration of the agent that is meant.
func (c *Config) agent() config.Config {
	if c.Starting != nil {
		return *c.Starting
	}
	out := config.Default()
	if c.ConfigFile != "" || c.ConfigDir != "" {
		// What cannot be read the probe of the embedded runtime tells of.
		if l, err := (&config.Sources{File: c.ConfigFile, Dir: c.ConfigDir, RunDir: out.RunDir}).Load(); err == nil {
			out = l.Config
		}
	}
	if c.RunDir != "" {
		out.RunDir = c.RunDir
	}
	return out
}

func run(ctx context.Context, all []probe, e *env) Report {
	r, do := Report{Machine: machine()}, remedies()
	for _, p := range all {
		row := Row{Name: p.name, Required: p.required}
		if err := ctx.Err(); err != nil {
			row.Status, row.Found = Missing, "not tried: "+err.Error()
		} else {
			a := p.run(ctx, e)
			row.Status, row.Found = a.status, oneLine(a.found)
		}
		if row.Status != OK {
			row.Cost, row.Remedy = p.cost, do[p.name]
		}
		r.Rows = append(r.Rows, row)
	}
	r.Able = r.OK()
	return r
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

func probes(starting bool) []probe {
	var all []probe
	for _, list := range [][]probe{
		systemProbes(), namespaceProbes(), cgroupProbes(), filesystemProbes(), rootProbes(), networkProbes(), bridgeProbes(), podNetworkProbes(),
		processProbes(), securityProbes(), hostProbes(), diskProbes(), neighbourProbes(starting), packageProbes(), podProbes(),
		clusterProbes(),
	} {
		all = append(all, list...)
	}
	return all
}

// existing is the nearest directory above path that is there: the same file system, most likely, that path will be made
// on.
func existing(path string) string {
	for path = filepath.Clean(path); ; path = filepath.Dir(path) {
		if st, err := os.Stat(path); err == nil && st.IsDir() {
			return path
		}
		if path == "/" || path == "." {
			return "/"
		}
	}
}

func machine() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return runtime.GOARCH
	}
	return fmt.Sprintf("Linux %s %s, %d CPUs", unix.ByteSliceToString(u.Release[:]), unix.ByteSliceToString(u.Machine[:]), runtime.NumCPU())
}

func readLine(path string) (string, error) {
	data, err := os.ReadFile(path)
	return strings.TrimSpace(string(data)), err
}

// thread runs fn on an operating system thread of its own that dies with it, together with the namespaces fn moved it
// to: a thread that was moved cannot be given back to Go.
func thread(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() {
			// The main thread cannot die, and all of /proc/self is about it: it is kept busy while another one does the
			// work.
			defer runtime.UnlockOSThread()
			done <- thread(fn)
			return
		}
		done <- fn() // never unlocked, which is what ends the thread
	}()
	return <-done
}
