package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/opencontainers/cgroups/manager"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runc/libcontainer/specconv"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cri/rlimit"
)

// reportFd is the socket to the keeper, see launch.c.
const reportFd = 3

// launch is the order of a launcher.
type launch struct {
	id, bundle, state string
	console           *os.File // nil without a terminal
	left              bool     // by a starter, which has found the container's group made
}

// start waits for an order, creates and starts the container, and tells the
// keeper how far it came. What it says is one packet each: "P<pid>" when the
// init process is there but the program does not run yet, "S" when it does,
// "E<error>".
func start() int {
	unix.CloseOnExec(reportFd)
	report := os.NewFile(reportFd, "report")
	l, err := receive()
	if errors.Is(err, io.EOF) {
		return 0 // nothing to do after all
	}
	if err == nil {
		err = l.run(report)
	}
	if err != nil {
		text := err.Error()
		fmt.Fprint(report, "E"+text[:min(len(text), 3500)])
		return 1
	}
	return 0
}

func (l launch) run(report *os.File) (err error) {
	spec, err := l.spec()
	if err != nil {
		return err
	}
	root := spec.Root.Path
	if !filepath.IsAbs(root) {
		root = filepath.Join(l.bundle, root)
	}
	setHome(spec, root)
	link, err := l.link(spec, stageOf(spec, filepath.Join(l.state, l.id), root))
	if err != nil {
		return err
	}
	container, err := l.create(spec)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = container.Destroy()
		}
	}()
	process, err := newProcess(spec.Process)
	if err == nil {
		err = l.connect(process, container.Config())
	}
	if err != nil {
		return err
	}
	process.PidfdSocket = link.theirs
	// libcontainer hands it on, and its init would begin with a change from what we have to one.
	if err := os.Setenv("GOMAXPROCS", "1"); err != nil {
		return err
	}
	if err := container.Start(process); err != nil {
		return err
	}
	pid, err := process.Pid()
	if err != nil {
		return err
	}
	// The keeper records the pid before the program can run.
	if _, err := fmt.Fprint(report, "P"+strconv.Itoa(pid)); err != nil {
		return kill(process, fmt.Errorf("tell keeper of process %d: %w", pid, err))
	}
	if err := link.finish(); err != nil {
		return kill(process, err)
	}
	if err := container.Exec(); err != nil {
		return kill(process, err)
	}
	link.awaitExec(pid)
	if _, err := fmt.Fprint(report, "S"); err != nil {
		return kill(process, fmt.Errorf("tell keeper of the start: %w", err))
	}
	return nil
}

// connect gives a process its terminal or its stdio.
func (l launch) connect(p *libcontainer.Process, c configs.Config) error {
	if l.console != nil {
		p.ConsoleSocket = l.console
		return nil
	}
	p.Stdin, p.Stdout, p.Stderr = os.Stdin, os.Stdout, os.Stderr
	return giveStdio(c)
}

// giveStdio makes the pipes those of the container's root where it has a user
// namespace: from inside, nobody could give them to the program's user.
func giveStdio(c configs.Config) error {
	if !c.Namespaces.Contains(configs.NEWUSER) {
		return nil
	}
	uid, err := c.HostRootUID()
	if err != nil {
		return err
	}
	gid, err := c.HostRootGID() // power over a file is power over its user and its group
	if err != nil {
		return err
	}
	for fd := range 3 {
		var st unix.Stat_t
		if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFIFO {
			continue
		}
		if err := unix.Fchown(fd, uid, gid); err != nil {
			return fmt.Errorf("change owner of stdio: %w", err)
		}
	}
	return nil
}

// kill ends an init process that shall not become a container, so that its
// cgroup can be removed. One that has ended by itself is why err came.
func kill(p *libcontainer.Process, err error) error {
	_ = p.Signal(unix.SIGKILL)
	ended, _ := p.Wait()
	if ended == nil {
		return err
	}
	if s, ok := ended.Sys().(syscall.WaitStatus); ok && s.Signaled() && s.Signal() == unix.SIGKILL {
		return err
	}
	return fmt.Errorf("%w (init: %s)", err, ended)
}

func (l launch) spec() (*specs.Spec, error) {
	b, err := os.ReadFile(filepath.Join(l.bundle, "config.json"))
	if err != nil {
		return nil, err
	}
	spec, err := decodeSpec(b)
	if err != nil {
		return nil, fmt.Errorf("read config.json: %w", err)
	}
	p := spec.Process
	switch {
	case p == nil:
		return nil, errors.New("config.json has no process")
	case len(p.Args) == 0:
		return nil, errors.New("process has no arguments")
	case !filepath.IsAbs(p.Cwd):
		return nil, fmt.Errorf("process has a cwd that is not absolute: %q", p.Cwd)
	case spec.Root == nil:
		return nil, errors.New("config.json has no root")
	case p.Terminal != (l.console != nil):
		return nil, errors.New("config.json and the keeper disagree about a terminal")
	}
	return spec, nil
}

// decodeSpec reads what of a config is for Linux. encoding/json looks at all
// types that a value could have before it reads the first, and those of other
// systems would be a quarter of that.
func decodeSpec(b []byte) (*specs.Spec, error) {
	var s struct {
		Version     string            `json:"ociVersion"`
		Process     *specs.Process    `json:"process"`
		Root        *specs.Root       `json:"root"`
		Hostname    string            `json:"hostname"`
		Domainname  string            `json:"domainname"`
		Mounts      []specs.Mount     `json:"mounts"`
		Hooks       *specs.Hooks      `json:"hooks"`
		Annotations map[string]string `json:"annotations"`
		Linux       *specs.Linux      `json:"linux"`
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return nil, err
	}
	return &specs.Spec{
		Version: s.Version, Process: s.Process, Root: s.Root, Hostname: s.Hostname, Domainname: s.Domainname,
		Mounts: s.Mounts, Hooks: s.Hooks, Annotations: s.Annotations, Linux: s.Linux,
	}, nil
}

// link takes the seccomp profile out of the spec, so that libcontainer does not
// compile it, and returns what loads it compiled.
func (l launch) link(spec *specs.Spec, s stage) (*link, error) {
	if spec.Linux == nil || spec.Linux.Seccomp == nil {
		return newLink(s, nil)
	}
	p := spec.Linux.Seccomp
	if native(p) || p.DefaultAction == "" && len(p.Syscalls) == 0 {
		return newLink(s, nil)
	}
	filter, err := l.filter(p)
	if err != nil {
		return nil, fmt.Errorf("compile seccomp profile: %w", err)
	}
	spec.Linux.Seccomp = nil
	return newLink(s, filter)
}

func (l launch) create(spec *specs.Spec) (*libcontainer.Container, error) {
	// The config's root is relative to the bundle, which specconv takes to be
	// the working directory.
	if err := os.Chdir(l.bundle); err != nil {
		return nil, err
	}
	systemd := false
	if spec.Linux != nil {
		// slice:prefix:name is the form a systemd cgroup has.
		systemd = strings.Count(spec.Linux.CgroupsPath, ":") == 2 && !strings.HasPrefix(spec.Linux.CgroupsPath, "/")
	}
	if err := readHierarchies(); err != nil {
		return nil, err
	}
	config, err := specconv.CreateLibcontainerConfig(&specconv.CreateOpts{
		CgroupName:       l.id,
		UseSystemdCgroup: systemd,
		Spec:             spec,
	})
	if err != nil {
		return nil, err
	}
	if systemd && l.left {
		if err := stopScope(config); err != nil {
			return nil, err
		}
	}
	c, err := libcontainer.Create(l.state, l.id, config)
	if !errors.Is(err, libcontainer.ErrExist) {
		return c, err
	}
	// A launcher before us was killed half way: the keeper runs one at a time
	// for an id, so nobody else is using it.
	old, lerr := libcontainer.Load(l.state, l.id)
	if lerr == nil {
		_ = old.Signal(unix.SIGKILL)
		_ = old.Destroy()
	}
	if err := os.RemoveAll(filepath.Join(l.state, l.id)); err != nil {
		return nil, err
	}
	return libcontainer.Create(l.state, l.id, config)
}

// stopScope ends the scope that the agent has made for an ordinary container, with who holds it: systemd makes none
// that is there.
func stopScope(c *configs.Config) error {
	m, err := manager.New(c.Cgroups)
	if err == nil {
		err = m.Destroy()
	}
	if err != nil {
		return fmt.Errorf("stop scope: %w", err)
	}
	return nil
}

func newProcess(p *specs.Process) (*libcontainer.Process, error) {
	lp := &libcontainer.Process{
		Init:            true,
		Args:            p.Args,
		Env:             p.Env,
		UID:             int(p.User.UID),
		GID:             int(p.User.GID),
		Cwd:             p.Cwd,
		Label:           p.SelinuxLabel,
		AppArmorProfile: p.ApparmorProfile,
		NoNewPrivileges: &p.NoNewPrivileges,
		Scheduler:       p.Scheduler,
		IOPriority:      p.IOPriority,
		LogLevel:        "3", // warnings: what is below is dropped anyhow
	}
	for _, g := range p.User.AdditionalGids {
		lp.AdditionalGroups = append(lp.AdditionalGroups, int(g))
	}
	if s := p.ConsoleSize; s != nil {
		lp.ConsoleWidth, lp.ConsoleHeight = uint16(s.Width), uint16(s.Height)
	}
	if c := p.Capabilities; c != nil {
		lp.Capabilities = &configs.Capabilities{
			Bounding: c.Bounding, Effective: c.Effective, Permitted: c.Permitted,
			Inheritable: c.Inheritable, Ambient: c.Ambient,
		}
	}
	for _, r := range p.Rlimits {
		n, err := rlimit.Kind(r.Type)
		if err != nil {
			return nil, err
		}
		lp.Rlimits = append(lp.Rlimits, configs.Rlimit{Type: int(n), Soft: r.Soft, Hard: r.Hard})
	}
	return lp, nil
}
