package source

import (
	"errors"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/source/manifest"
	"github.com/berth-node/berth/agent/source/url"
)

// entries takes in what the directory tells.
type entries struct{ s *Source }

func (e entries) Content(name string, data []byte, exposed error) {
	e.s.content(name, data, manifest.Place{Origin: desired.File, Exposed: exposed})
}

func (e entries) Unreadable(name string, err error) { e.s.fail(name, err) }

func (e entries) Missing(name string) { e.s.refresh(name) }

func (e entries) Removed(name string) { e.s.drop(name) }

func (e entries) Directory(err error) {
	if err == nil {
		e.s.setProblems("", nil)
		return
	}
	e.s.setProblems("", []Problem{{File: e.s.cfg.Dir, Errors: []string{err.Error()}}})
}

// errURLExposed is why a URL may not hold Secrets.
var errURLExposed = errors.New("Secrets are not taken from a URL: put them into files of mode 0600 in the " +
	"manifest directory")

// fetched makes what the URL said the desired state.
func (s *Source) fetched(a url.Answer) {
	s.answered = true
	switch {
	case a.Same:
	case a.Err != nil:
		s.fail(s.cfg.URL, a.Err)
	default:
		s.content(s.cfg.URL, a.Data, manifest.Place{Origin: desired.URL, Exposed: errURLExposed})
	}
}
