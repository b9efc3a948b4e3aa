package container

import (
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-node/berth/cri/host"
	"github.com/berth-node/berth/cri/keeper"
	"github.com/berth-node/berth/cri/plain"
)

// ordinary has the keeper start a container without libcontainer, if it is an ordinary one. Why another is not, only
// the log of details says: it is started all the same.
func (l *Lifecycle) ordinary(c *Container, k keeper.Container) keeper.Container {
	machine := l.host.Runtimes.Plain
	if machine == nil || k.Runtime != nil || k.PIDNamespace != "" {
		return k
	}
	left := func(why string) {
		l.host.Log.Debug("libcontainer starts the container", append(c.LogAttrs(), "reason", why)...)
	}
	spec, err := l.takeSpec(c)
	var s *plain.Start
	if err == nil {
		s, err = plain.Of(spec, *machine)
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

// takeSpec is the specification of a container that is started now: as it was made, or else as it was written.
func (l *Lifecycle) takeSpec(c *Container) (*specs.Spec, error) {
	c.mu.Lock()
	spec := c.exec.spec
	c.exec.spec = nil
	c.mu.Unlock()
	if spec != nil {
		return spec, nil
	}
	return host.ReadSpec(l.host.Paths.Container(c.ID).Spec())
}
