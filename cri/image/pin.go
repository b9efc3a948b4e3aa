package image

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// readPins makes patterns of the names of pinned images. A name without * is completed as people are used to.
func (s *Store) readPins() error {
	var errs []error
	for _, name := range s.cfg.Pinned {
		if !strings.Contains(name, "*") {
			named, err := ParseName(name)
			if err != nil {
				errs = append(errs, fmt.Errorf("pinned images: %w", err))
				continue
			}
			name = named.String()
		}
		s.pins = append(s.pins, regexp.MustCompile("^"+strings.ReplaceAll(regexp.QuoteMeta(name), `\*`, ".*")+"$"))
	}
	return errors.Join(errs...)
}

// pinned says whether garbage collection has to leave an image with these names. It is not kept with the image: the configuration may be
// another one after the next start. What came with an archive may be in no registry that the machine can reach.
func (s *Store) pinned(id string, names []string) bool {
	for file, r := range s.archives.All() {
		if s.cfg.Archives != "" && filepath.Dir(file) == filepath.Clean(s.cfg.Archives) && slices.Contains(r.IDs, id) {
			return true
		}
	}
	for _, p := range s.pins {
		if slices.ContainsFunc(names, p.MatchString) {
			return true
		}
	}
	return false
}
