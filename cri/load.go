package cri

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// loader reads the records into memory, each from the table or from its pod's own directory. What it cannot read it leaves where it is,
// and says so.
type loader struct {
	*Server
	lost    bool // records of the table were lost, so that what it has may be of earlier
	adopted int
}

func (s *Server) load() {
	l := &loader{Server: s, lost: s.db.Lost() != ""}
	l.sandboxes()
	l.containers()
	if l.adopted > 0 {
		s.log.Error("records were lost, and pods are adopted by their own", "sandboxes", l.adopted, "file", s.machine.paths.db())
	}
	s.adopted = l.adopted
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
	l.pods.records.ids(func(id string) { ids[id] = true })
	for _, id := range entries(l.machine.paths.sandboxes()) {
		ids[id] = true
	}
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		switch err := l.sandbox(id); {
		case errors.Is(err, fs.ErrNotExist): // nobody's
		case err != nil:
			l.pods.quarantine(id, err)
		}
	}
}

func (l *loader) sandbox(id string) error {
	cfg := &runtimeapi.PodSandboxConfig{}
	f, err := l.pods.records.find(id, l.machine.paths.record(id), l.lost, func(r sandboxRecord) error {
		cfg.Reset()
		if err := decode(r.Config, cfg); err != nil {
			return err
		}
		return r.check(id, cfg)
	})
	if err != nil {
		return err
	}
	if err := decode(f.rec.Config, cfg); err != nil {
		return err
	}
	if err := l.pods.names.reserve(f.rec.Name, id); err != nil {
		return err
	}
	sb := newSandbox(f.rec, cfg)
	l.pods.byID.put(id, sb)
	if f.adopted {
		l.adopted++
		l.log.Warn("record of a sandbox was lost, and it is adopted by its own", append(sb.logAttrs(), "state", f.rec.State)...)
	}
	if err := l.pods.records.supply(id, f.rec); err != nil {
		l.log.Warn("sandbox would be lost with the records", append(sb.logAttrs(), "error", err)...)
	}
	return nil
}

func (l *loader) containers() {
	ids := map[string]string{} // the sandbox's by the container's; "" = not known
	l.ctrs.records.ids(func(id string) { ids[id] = "" })
	for _, sandbox := range entries(l.machine.paths.sandboxes()) {
		for _, id := range entries(l.machine.paths.records(sandbox)) {
			ids[id] = sandbox
		}
	}
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		sandbox := ids[id]
		if rec, err := l.ctrs.records.table.Get(id); err == nil {
			sandbox = rec.SandboxID
		}
		if sandbox == "" {
			sandbox = l.sandboxRunning(id)
		}
		if err := l.container(id, sandbox); err != nil {
			l.obscure(id, sandbox, err)
		}
	}
}

func (l *loader) container(id, sandbox string) error {
	sb, err := l.pods.byID.get(sandbox)
	if err != nil {
		return err
	}
	cfg := &runtimeapi.ContainerConfig{}
	f, err := l.ctrs.records.find(id, l.machine.paths.ctrRecord(sb.id, id), l.lost, func(r containerRecord) error {
		cfg.Reset()
		if err := decode(r.Config, cfg); err != nil {
			return err
		}
		return r.check(id, cfg, sb)
	})
	if err != nil {
		return err
	}
	if err := decode(f.rec.Config, cfg); err != nil {
		return err
	}
	if err := l.ctrs.names.reserve(f.rec.Name, id); err != nil {
		return err
	}
	c := newContainer(f.rec, cfg, sb)
	l.ctrs.byID.put(id, c)
	sb.add(c)
	if f.adopted {
		l.log.Warn("record of a container was lost, and it is adopted by its pod's own", append(c.logAttrs(), "state", f.rec.State)...)
	}
	if err := l.ctrs.records.supply(id, f.rec); err != nil {
		l.log.Warn("container would be lost with the records", append(c.logAttrs(), "error", err)...)
	}
	return nil
}
