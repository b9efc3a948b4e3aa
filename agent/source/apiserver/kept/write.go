package kept

import (
	"errors"
	"io/fs"
	"os"

	"github.com/berth-node/berth/internal/atomicfile"
)

// write writes what is to be kept, if it is not what the file has, and says whether the file has it.
func (s *Store) write() bool {
	s.mu.Lock()
	pods, saved, hands, done := s.next, s.saved, s.hands, s.done
	s.hands, s.done = nil, nil
	s.mu.Unlock()
	defer func() {
		for _, fn := range done {
			fn()
		}
	}()
	s.file.Lock()
	defer s.file.Unlock()
	var c change
	if saved {
		left := 0
		c, s.size, left = s.state.plan(pods, s.cfg.Max)
		s.tell(left)
	}
	s.state.apply(c)
	s.take(&c, hands)
	err := s.store(c)
	switch {
	case err == nil:
		s.told = false
	case !s.told:
		s.told = true
		s.cfg.Log.Warn("pods are not kept for a start without the API server", "path", s.log.path, "error", err)
	}
	if saved {
		s.forget()
	}
	return err == nil
}

// tell says once that not all fits.
func (s *Store) tell(left int) {
	if left > 0 == s.short {
		return
	}
	s.short = left > 0
	s.cfg.Log.Warn("pods that are kept for a start without the API server are too large, so that those with the lowest priority "+
		"are not kept", "bytes", s.cfg.Max, "pods-left", left)
}

// take has what was issued to pods that are kept be kept, as far as there is room.
func (s *Store) take(c *change, hands []given) {
	var more change
	for _, g := range hands {
		_, here := s.state.pods[g.UID]
		if n := cost(g.Data); (here || g.UID == string(OfNode)) && s.size+n <= s.cfg.Max {
			s.size += n
			more.Issued = append(more.Issued, g)
		}
	}
	s.state.apply(more)
	c.Issued = append(c.Issued, more.Issued...)
}

// forget drops what was issued to pods that are not kept.
func (s *Store) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for uid := range s.issued {
		if _, here := s.state.pods[uid]; !here && uid != string(OfNode) && !s.waits(uid) {
			delete(s.issued, uid)
		}
	}
}

// waits says whether something was issued since to a pod, which may be kept with the next write.
func (s *Store) waits(uid string) bool {
	for _, g := range s.hands {
		if g.UID == uid {
			return true
		}
	}
	return false
}

// store has the file be what the state is, of which c is what has changed.
func (s *Store) store(c change) error {
	none := len(s.state.pods) == 0
	switch {
	case none && (s.log.here || !c.empty()):
		s.log.head = nil
		if err := os.Remove(s.log.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		s.log.here = false
		return atomicfile.SyncDir(s.cfg.Dir)
	case none || c.empty() && len(s.log.head) > 0:
		return nil
	case s.log.full():
		return s.log.begin(s.state.whole())
	}
	return s.log.add(c)
}
