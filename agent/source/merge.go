package source

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/object"
	"github.com/berth-node/berth/agent/source/manifest"
	"github.com/berth-node/berth/agent/source/url"
)

// file is what is known of one entry of the directory, or of the URL.
type file struct {
	sum      [sha256.Size]byte
	exposed  string // why it may not hold Secrets, in words
	read     bool   // sum and exposed hold
	claims   []manifest.Item
	problems []Problem // but for conflicts with other files
}

func (f *file) claim(key object.Ref) *manifest.Item {
	for i := range f.claims {
		if f.claims[i].Ref == key {
			return &f.claims[i]
		}
	}
	return nil
}

// file is what is known of one, which is nothing at first.
func (s *Source) file(name string) *file {
	f := s.files[name]
	if f == nil {
		f = &file{}
		s.files[name] = f
	}
	return f
}

// fail notes that a file cannot be read; its pods stay.
func (s *Source) fail(name string, err error) {
	f := s.file(name)
	f.read = false
	f.problems = []Problem{{File: s.path(name), Errors: []string{manifest.Shorten(err.Error())}, Kept: podsOf(f.claims)}}
	s.refresh(name)
}

// content makes what a file has now the desired state, unless it has not changed.
func (s *Source) content(name string, data []byte, from manifest.Place) {
	f := s.file(name)
	sum, exposed := sha256.Sum256(data), fmt.Sprint(from.Exposed)
	same := f.read && f.sum == sum && f.exposed == exposed
	f.exposed = exposed
	switch {
	case same:
		return
	case len(data) == 0 && len(f.claims) == 0:
		// Somebody is about to fill it.
		f.problems = nil
		s.refresh(name)
		return
	case len(data) == 0:
		s.fail(name, errors.New("file is empty (remove it to remove its pods)"))
		return
	}
	f.sum, f.read = sum, true
	s.apply(name, f, s.reader.Read(data, from))
}

// apply makes the pods of a file desired. While any of its documents is wrong, none of its pods goes.
func (s *Source) apply(name string, f *file, docs []manifest.Document) {
	f.problems = nil
	before := f.claims
	var now []manifest.Item
	wrong := false
	for _, d := range docs {
		wrong = wrong || d.Item == nil && len(d.Errors) > 0
		if c := d.Item; c != nil {
			if old := f.claim(c.Ref); old != nil && old.Hash == c.Hash {
				c = old
			} else {
				s.succeed(f, c)
			}
			now = append(now, *c)
		}
		if len(d.Errors)+len(d.Warnings) > 0 {
			p := Problem{File: s.path(name), Pod: d.Name, Errors: d.Errors, Warnings: d.Warnings}
			f.problems = append(f.problems, p)
		}
	}
	if wrong {
		var kept []manifest.Item
		for _, old := range before {
			if !slices.ContainsFunc(now, func(c manifest.Item) bool { return c.Ref == old.Ref }) {
				kept = append(kept, old)
			}
		}
		now = append(now, kept...)
		tellKept(f.problems, podsOf(kept))
	}
	f.claims = now
	s.reclaim(name, before, now)
}

// podsOf names the pods among claims.
func podsOf(claims []manifest.Item) []string {
	var out []string
	for _, c := range claims {
		if c.Pod != nil {
			out = append(out, c.Ref.NamespacedName.String())
		}
	}
	return out
}

// tellKept says of each error of a file which pods run on because of it: the one that it names, or any where it names
// none.
func tellKept(problems []Problem, kept []string) {
	for i := range problems {
		switch p := &problems[i]; {
		case len(p.Errors) == 0:
		case p.Pod == "":
			p.Kept = kept
		case slices.Contains(kept, p.Pod):
			p.Kept = []string{p.Pod}
		}
	}
}

// drop forgets a file and its pods.
func (s *Source) drop(name string) {
	f := s.files[name]
	if f == nil {
		return
	}
	delete(s.files, name)
	s.reclaim(name, f.claims, nil)
	s.setProblems(name, nil)
}

// reclaim changes which keys a file claims, from before to now.
func (s *Source) reclaim(name string, before, now []manifest.Item) {
	s.unsaved[name] = true
	others := map[string]bool{name: true}
	for _, c := range before {
		for _, o := range s.claims[c.Ref] {
			others[o] = true
		}
		if !slices.ContainsFunc(now, func(n manifest.Item) bool { return n.Ref == c.Ref }) {
			s.unclaim(name, c.Ref)
		}
	}
	for _, c := range now {
		if !slices.Contains(s.claims[c.Ref], name) {
			s.claims[c.Ref] = append(s.claims[c.Ref], name)
		}
		s.handOver(c.Ref)
		for _, o := range s.claims[c.Ref] {
			others[o] = true
		}
		s.settle(c.Ref)
	}
	for _, c := range before {
		s.settle(c.Ref)
	}
	for o := range others {
		s.refresh(o)
	}
}

func (s *Source) unclaim(name string, key object.Ref) {
	left := slices.DeleteFunc(s.claims[key], func(n string) bool { return n == name })
	if len(left) == 0 {
		delete(s.claims, key)
		return
	}
	s.claims[key] = left
}

// handOver lets a file that is going lose a key at once to one that is there: the manifest was renamed.
func (s *Source) handOver(key object.Ref) {
	slices.SortStableFunc(s.claims[key], func(a, b string) int {
		switch {
		case s.dir.Going(a) == s.dir.Going(b):
			return 0
		case s.dir.Going(a):
			return 1
		}
		return -1
	})
}

// settle queues what the desired state of a key is now.
func (s *Source) settle(key object.Ref) {
	holders := s.claims[key]
	if len(holders) == 0 {
		s.queue.put(desired.Update{Kind: key.Kind, Key: key.NamespacedName}, "")
		return
	}
	name := holders[0]
	c := s.files[name].claim(key)
	if c == nil {
		return
	}
	// What a pod refers to may be in a file that is read after its own.
	if c.Pod != nil && !s.queue.scanned && len(desired.Refs(c.Pod)) > 0 {
		return
	}
	s.queue.put(desired.Update{
		Kind: key.Kind, Key: key.NamespacedName, Pod: c.Pod, Object: c.Object, Origin: s.origin(name), File: s.path(name),
	}, c.Version())
}

// origin is where what is there under a name comes from.
func (s *Source) origin(name string) desired.Origin {
	if name == s.cfg.URL {
		return desired.URL
	}
	return desired.File
}

func (s *Source) path(name string) string {
	if s.origin(name) == desired.URL {
		return url.Redacted(name)
	}
	return filepath.Join(s.cfg.Dir, name)
}

// conflicts names the files that have what this one claims too.
func (s *Source) conflicts(name string, f *file) []Problem {
	var out []Problem
	for _, c := range f.claims {
		holder := s.claims[c.Ref][0]
		if holder == name || s.dir.Going(name) {
			continue
		}
		what, named := "pod", c.Ref.NamespacedName.String()
		if c.Pod == nil {
			what, named = strings.ToLower(string(c.Ref.Kind)), c.Ref.String()
		}
		out = append(out, Problem{File: s.path(name), Pod: named, Errors: []string{fmt.Sprintf(
			"metadata.name: Duplicate value: %q: %s of %s already, so that of %s waits until the other one goes",
			strings.TrimSuffix(c.Ref.Name, "-"+s.reader.Node), what, s.path(holder), s.path(name))}})
	}
	return out
}
