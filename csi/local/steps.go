package local

// steps hears of each step before it is done, so that a test can have the driver end there. Of a driver that nobody
// tests it is nil.
type steps func(name string)

func (s steps) at(name string) {
	if s != nil {
		s(name)
	}
}
