package plan

import "time"

// draft is a decision in the making.
type draft struct {
	view *View
	out  Decision
}

func (d *draft) add(s Step) {
	if !d.does(s.Key()) {
		d.out.Steps = append(d.out.Steps, s)
	}
}

// does says whether the step of that key runs.
func (d *draft) does(key string) bool {
	_, ok := d.view.Busy[key]
	return ok
}

// at asks to be woken.
func (d *draft) at(t time.Time) {
	if d.out.Wake.IsZero() || t.Before(d.out.Wake) {
		d.out.Wake = t
	}
}

// blocked says whether a step has failed too recently to be tried again.
func (d *draft) blocked(key string) (Failure, bool) {
	f, ok := d.view.Failed[key]
	if !ok || !d.view.Now.Before(f.Until) {
		return f, false
	}
	d.at(f.Until)
	return f, true
}

// try does a step now, unless it has failed just now.
func (d *draft) try(s Step) {
	if _, wait := d.blocked(s.Key()); !wait {
		d.add(s)
	}
}

// kill ends a container with that much grace from now on.
func (d *draft) kill(c *Container, grace time.Duration, why string) {
	d.killBy(c, d.view.Now.Add(grace), grace == 0, why)
}

func (d *draft) killBy(c *Container, deadline time.Time, force bool, why string) {
	name := c.GetMetadata().GetName()
	d.try(Step{Kind: Kill, Container: name, ID: c.GetId(), Deadline: deadline, Force: force, Why: why})
}
