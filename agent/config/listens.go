package config

// Listener is a port that the agent takes.
type Listener struct {
	Flag    string // that says which
	Address string
	Port    int32
}

// Listens are the ports that the agent takes for its API.
func (s *Server) Listens() []Listener {
	if !s.Enabled {
		return nil
	}
	var out []Listener
	for _, l := range []Listener{
		{"port", s.Address, s.Port}, {"read-only-port", s.Address, s.ReadOnlyPort}, {"healthz-port", s.HealthzAddress, s.HealthzPort},
	} {
		if l.Port != 0 {
			out = append(out, l)
		}
	}
	return out
}
