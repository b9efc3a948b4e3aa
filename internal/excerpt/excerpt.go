// Package excerpt keeps the beginning or the end of what is written, so that who writes without end costs a known
// amount of memory. Both take all that is written: a program must not die of SIGPIPE before it says why it fails.
package excerpt

// First keeps the first bytes.
type First struct {
	Most  int // how many
	Bytes []byte
	Over  bool // there was more
	// Refuse is what a write fails with that goes beyond, none of which is kept; nil: all is taken.
	Refuse error
}

// Write implements [io.Writer].
func (f *First) Write(p []byte) (int, error) {
	f.Over = f.Over || len(f.Bytes)+len(p) > f.Most
	if f.Over && f.Refuse != nil {
		return 0, f.Refuse
	}
	f.Bytes = append(f.Bytes, p[:min(len(p), f.Most-len(f.Bytes))]...)
	return len(p), nil
}

// Last keeps the last bytes.
type Last struct {
	Most int    // how many
	kept []byte // they end with those, and there are up to as many before them, so that few writes move them
}

// Bytes are the last that were written.
func (l *Last) Bytes() []byte { return l.kept[max(0, len(l.kept)-l.Most):] }

// Write implements [io.Writer].
func (l *Last) Write(p []byte) (int, error) {
	n := len(p)
	p = p[max(0, n-l.Most):]
	if len(l.kept)+len(p) > 2*l.Most {
		l.kept = l.kept[:copy(l.kept, l.Bytes())]
	}
	l.kept = append(l.kept, p...)
	return n, nil
}
