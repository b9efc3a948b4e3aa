package source

import (
	"maps"
	"reflect"
	"slices"
)

// Problems returns what is wrong now, by file.
func (s *Source) Problems() []Problem {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Problem
	for _, name := range slices.Sorted(maps.Keys(s.problems)) {
		out = append(out, s.problems[name]...)
	}
	return out
}

// refresh tells again what is wrong with a file.
func (s *Source) refresh(name string) {
	f := s.files[name]
	if f == nil {
		s.setProblems(name, nil)
		return
	}
	s.setProblems(name, append(slices.Clone(f.problems), s.conflicts(name, f)...))
}

func (s *Source) setProblems(name string, now []Problem) {
	s.mu.Lock()
	before := s.problems[name]
	if len(now) == 0 {
		delete(s.problems, name)
	} else {
		s.problems[name] = now
	}
	s.mu.Unlock()
	for _, p := range now {
		if slices.ContainsFunc(before, func(b Problem) bool { return reflect.DeepEqual(b, p) }) {
			continue
		}
		s.cfg.Report(p)
		if len(p.Errors) > 0 {
			s.log.Error("manifest is refused, and what runs of it stays", "file", p.File, "pod", p.Pod, "errors", p.Errors,
				"warnings", p.Warnings)
		} else {
			s.log.Warn("manifest has flaws", "file", p.File, "pod", p.Pod, "warnings", p.Warnings)
		}
	}
	for _, b := range before {
		if !slices.ContainsFunc(now, func(p Problem) bool { return p.Pod == b.Pod }) {
			s.cfg.Report(Problem{File: b.File, Pod: b.Pod})
			s.log.Info("manifest is in order again", "file", b.File, "pod", b.Pod)
		}
	}
}
