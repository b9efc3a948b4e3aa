package apiserver

// bell wakes who works, once however often it is rung before that.
type bell chan struct{}

func (b bell) ring() {
	select {
	case b <- struct{}{}:
	default:
	}
}

// calm is waited for by those who do not want to be in the way of statuses. The lock of the Writer is held.
type calm struct {
	comes chan struct{} // closed when it does; nil: nobody waits for it
}

func (c *calm) wait() <-chan struct{} {
	if c.comes == nil {
		c.comes = make(chan struct{})
	}
	return c.comes
}

// look tells those who wait when nothing is being sent or is to be. What the server does not take is no matter: it may
// be long until it does.
func (c *calm) look(dirty map[*entry]struct{}, running int) {
	if c.comes == nil || running > 0 {
		return
	}
	for e := range dirty {
		if e.trouble.failures == 0 {
			return
		}
	}
	close(c.comes)
	c.comes = nil
}
