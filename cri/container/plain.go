package container

import (
	"errors"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-node/berth/cri/host"
	"github.com/berth-node/berth/cri/keeper"
	"github.com/berth-node/berth/cri/plain"
)

// ordinary has the keeper start a container without libcontainer, if it is an ordinary one. Why another is not, only
// the log of details says: it is started all the same.
func (l *Lifecycle) ordinary(c *Container, by host.Keeper, k keeper.Container) keeper.Container {
	machine, spec := l.host.Runtimes.Plain, c.takeSpec()
	if machine == nil || k.Runtime != nil || k.PIDNamespace != "" {
		return k
	}
	left := func(why string) {
		l.host.Log.Debug("libcontainer starts the container", append(c.LogAttrs(), "reason", why)...)
	}
	var s *plain.Start
	var err error
	if spec == nil {
		spec, err = host.ReadSpec(l.host.Paths.Container(c.ID).Spec())
	}
	if err == nil {
		s, err = plain.Of(spec, *machine)
	}
	if err == nil && s.Scoped() && !by.StartsInScopes() {
		err = errors.New("the keeper of the pod is of an older version, and the group a scope")
	}
	if err == nil {
		err = s.Prepare(spec, k.Bundle, k.StateDir)
	}
	if err != nil {
		left(err.Error())
		return k
	}
	k.Plain, k.Left = s, left
	return k
}

// takeSpec is the specification of a container that is started now, as it was made. Nobody keeps it any longer, whoever
// starts the container; nil after a restart of the agent.
func (c *Container) takeSpec() *specs.Spec {
	c.mu.Lock()
	defer c.mu.Unlock()
	spec := c.exec.spec
	c.exec.spec = nil
	return spec
}
