package image

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/berth-node/berth/cri/store"
)

// pins say which images garbage collection has to leave. It is not kept with the images: the configuration may be
// another one after the next start.
type pins struct {
	names    []*regexp.Regexp
	archives *store.Table[archiveRecord]
	dir      string // of the archives that are imported at the start; "" = none
}

// parsePins makes patterns of the names of pinned images. A name without * is completed as people are used to.
func parsePins(names []string) ([]*regexp.Regexp, error) {
	var patterns []*regexp.Regexp
	var errs []error
	for _, name := range names {
		if !strings.Contains(name, "*") {
			named, err := ParseName(name)
			if err != nil {
				errs = append(errs, fmt.Errorf("pinned images: %w", err))
				continue
			}
			name = named.String()
		}
		patterns = append(patterns, regexp.MustCompile("^"+strings.ReplaceAll(regexp.QuoteMeta(name), `\*`, ".*")+"$"))
	}
	return patterns, errors.Join(errs...)
}

// has says whether an image with these names is pinned. What came with an archive may be in no registry that the
// machine can reach.
func (p pins) has(id string, names []string) bool {
	for file, r := range p.archives.All() {
		if p.dir != "" && filepath.Dir(file) == filepath.Clean(p.dir) && slices.Contains(r.IDs, id) {
			return true
		}
	}
	return slices.ContainsFunc(p.names,
		func(n *regexp.Regexp) bool { return slices.ContainsFunc(names, n.MatchString) })
}
