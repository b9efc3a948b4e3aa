package cri

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/berth-node/berth/cri/container"
	"github.com/berth-node/berth/cri/host"
	"github.com/berth-node/berth/cri/sandbox"
)

// loader reads the records into memory, each from the table or from its pod's own directory. What it cannot read it
// leaves where it is, and says so.
type loader struct {
	host    *host.Host
	pods    *sandbox.Sandboxes
	ctrs    *container.Containers
	lost    bool // records of the table were lost, so that what it has may be of earlier
	adopted int
}

func (r *core) load() {
	l := &loader{host: r.host, pods: r.pods, ctrs: r.ctrs, lost: r.db.Lost() != ""}
	l.sandboxes()
	l.containers()
	if l.adopted > 0 {
		r.log.Error("records were lost, and pods are adopted by their own", "sandboxes", l.adopted, "file", r.host.Paths.DB())
	}
	r.adopted = l.adopted
}

var isID = regexp.MustCompile(`^[0-9a-f]{64}$`).MatchString

// entries are the IDs that a directory has something of.
func entries(dir string) []string {
	all, err := os.ReadDir(dir)
	if err != nil {
		return nil // there is nothing of it, or the sweep says what is wrong with it
	}
	var ids []string
	for _, e := range all {
		if isID(e.Name()) {
			ids = append(ids, e.Name())
		}
	}
	return ids
}

func (l *loader) sandboxes() {
	ids := map[string]bool{}
	l.pods.Table.IDs(func(id string) { ids[id] = true })
	for _, id := range entries(l.host.Paths.Sandboxes()) {
		ids[id] = true
	}
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		switch adopted, err := l.pods.Table.Load(id, l.lost); {
		case adopted:
			l.adopted++
		case errors.Is(err, fs.ErrNotExist): // nobody's
		case err != nil:
			l.pods.Quarantine.AddSandbox(id, err)
		}
	}
}

func (l *loader) containers() {
	ids := l.ctrs.IDs() // the sandbox's by the container's; "" = not known
	for _, sandbox := range entries(l.host.Paths.Sandboxes()) {
		for _, id := range entries(l.host.Paths.Sandbox(sandbox).Records()) {
			if ids[id] == "" {
				ids[id] = sandbox
			}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		sandbox := ids[id]
		if sandbox == "" {
			sandbox = l.sandboxRunning(id)
		}
		if err := l.ctrs.Load(id, sandbox, l.lost); err != nil {
			var of []any // a sandbox that is known
			if sb, ok := l.pods.Table.ByID.Exact(sandbox); ok {
				of = sb.LogAttrs()
			}
			l.pods.Quarantine.AddContainer(id, sandbox, of, err)
		}
	}
}

// sandboxRunning finds the sandbox whose keeper knows the container; "" when there is none.
func (l *loader) sandboxRunning(id string) string {
	found, err := filepath.Glob(filepath.Join(l.host.Paths.Sandboxes(), "*", "keeper", "c", id))
	if err != nil || len(found) == 0 {
		return ""
	}
	return filepath.Base(filepath.Dir(filepath.Dir(filepath.Dir(found[0]))))
}
