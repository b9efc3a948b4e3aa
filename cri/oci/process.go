package oci

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

const defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

func process(in *Input, s *specs.Spec) error {
	args, err := arguments(in)
	if err != nil {
		return err
	}
	cwd := in.Container.GetWorkingDir()
	if cwd == "" {
		cwd = in.Image.WorkingDir
	}
	if cwd == "" {
		cwd = "/"
	}
	if !path.IsAbs(cwd) {
		return fmt.Errorf("working directory %q is not absolute", cwd)
	}
	p := s.Process
	p.Args, p.Cwd, p.Env, p.User = args, cwd, environment(in), in.User
	p.Terminal = in.Container.GetTty()
	p.NoNewPrivileges = security(in.Container).GetNoNewPrivs()
	adj := max(int(in.Container.GetLinux().GetResources().GetOomScoreAdj()), in.Host.OOMScoreAdjMin)
	p.OOMScoreAdj = &adj
	return nil
}

// arguments follows the rule that a command of the pod's own also does away with the image's arguments.
func arguments(in *Input) ([]string, error) {
	command, args := in.Container.GetCommand(), in.Container.GetArgs()
	if len(command) == 0 {
		if len(args) == 0 {
			args = in.Image.Cmd
		}
		command = in.Image.Entrypoint
	}
	all := slices.Concat(command, args)
	if len(all) == 0 {
		return nil, errors.New("no command specified: neither the container nor its image names one")
	}
	return all, nil
}

func environment(in *Input) []string {
	hostname := in.Sandbox.GetHostname()
	if hostname == "" {
		hostname = in.Host.Hostname
	}
	var e env
	e.set(defaultPath)
	if in.Container.GetTty() {
		e.set("TERM=xterm")
	}
	e.set("HOSTNAME=" + hostname)
	for _, kv := range in.Image.Env {
		e.set(kv)
	}
	for _, kv := range in.Container.GetEnvs() {
		e.set(kv.GetKey() + "=" + string(kv.GetValue()))
	}
	return e.list
}

// env is an environment in which a later value replaces an earlier one in its place.
type env struct {
	list  []string
	index map[string]int
}

func (e *env) set(kv string) {
	key, _, _ := strings.Cut(kv, "=")
	if key == "" {
		return
	}
	if i, ok := e.index[key]; ok {
		e.list[i] = kv
		return
	}
	if e.index == nil {
		e.index = map[string]int{}
	}
	e.index[key] = len(e.list)
	e.list = append(e.list, kv)
}
