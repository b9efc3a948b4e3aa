package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/berth-node/berth/csi"
	"github.com/berth-node/berth/internal/atomicfile"
)

// data is what is beside a volume's mount, as kubelet writes it for its own start. Here it is what a record is made
// from again that was lost.
type data struct {
	Driver    string `json:"driverName"`
	Handle    string `json:"volumeHandle"`
	Name      string `json:"specVolID,omitempty"`
	Node      string `json:"nodeName,omitempty"`
	Lifecycle string `json:"volumeLifecycleMode,omitempty"`
}

const (
	persistent = "Persistent"
	ephemeral  = "Ephemeral"
)

func dataOf(r *Request, node string) data {
	d := data{Driver: r.Driver, Handle: r.Handle, Name: r.Name, Node: node, Lifecycle: persistent}
	if r.Ephemeral {
		d.Lifecycle = ephemeral
	}
	return d
}

func writeData(dir string, d data) error {
	text, err := json.Marshal(d)
	if err == nil {
		err = atomicfile.Write(filepath.Join(dir, dataFile), text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", dataFile, err)
	}
	return nil
}

func removeData(dir string) error {
	for _, name := range []string{dataFile, dataFile + atomicfile.Part} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// readData returns what is beside a mount; false: nothing that can be trusted.
func readData(dir string) (data, bool) {
	if dir == "" {
		return data{}, false
	}
	text, err := readBounded(filepath.Join(dir, dataFile))
	var d data
	if err != nil || json.Unmarshal(text, &d) != nil || csi.CheckName(d.Driver) != nil || !isHandle(d.Handle) {
		return data{}, false
	}
	return d, true
}

// rebuild makes records again that were lost, from what is beside the volumes in the pods' directories, and beside
// block devices: without one nobody would undo them.
func (m *ledger) rebuild() error {
	dirs, err := filepath.Glob(filepath.Join(globEscape(m.layout.root), "pods", "*", "volumes", pluginName, "*", dataFile))
	if err != nil {
		return err
	}
	for _, path := range dirs {
		dir := filepath.Dir(path)
		d, ok := readData(dir)
		podDir := filepath.Dir(filepath.Dir(filepath.Dir(dir)))
		u := use{
			UID: filepath.Base(podDir), Dir: podDir, Name: filepath.Base(dir), Path: filepath.Join(dir, publishDir),
		}
		if !ok || m.later[key(d.Driver, d.Handle)] != "" {
			continue
		}
		m.rebuildOne(d, u, false)
	}
	return m.rebuildBlock()
}

// rebuildBlock does so for block devices. They are looked for by names alone: what is mounted there is not asked.
func (m *ledger) rebuildBlock() error {
	paths, err := filepath.Glob(filepath.Join(globEscape(m.layout.devices()), "*", "data", dataFile))
	if err != nil {
		return err
	}
	for _, path := range paths {
		name := filepath.Base(filepath.Dir(filepath.Dir(path)))
		d, ok := readData(filepath.Dir(path))
		if !ok || m.layout.blockData(name) == "" || m.later[key(d.Driver, d.Handle)] != "" {
			continue
		}
		pods, err := os.ReadDir(filepath.Join(m.layout.devices(), "publish", name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, p := range pods {
			dir := filepath.Join(m.layout.root, "pods", p.Name())
			if _, err := os.Lstat(dir); err != nil { // nobody would have it undone
				continue
			}
			m.rebuildOne(d, use{UID: p.Name(), Dir: dir, Name: name, Path: m.layout.target(true, dir, p.Name(), name)}, true)
		}
	}
	return nil
}

// staged says whether there is a place where a volume was staged, without looking at it.
func (m *ledger) staged(path string, block bool) bool {
	if !block {
		_, staged := readData(filepath.Dir(path))
		return staged
	}
	all, _ := os.ReadDir(filepath.Dir(path))
	return slices.ContainsFunc(all, func(e os.DirEntry) bool { return e.Name() == filepath.Base(path) })
}

func (m *ledger) rebuildOne(d data, u use, block bool) {
	id := key(d.Driver, d.Handle)
	v := m.entries[id]
	if v == nil {
		v = m.newEntry(id, d.Driver)
	}
	next := &record{Version: recordVersion, volume: volume{
		Driver: d.Driver, Handle: d.Handle, Name: u.Name, Ephemeral: d.Lifecycle == ephemeral, Block: block, Mode: ReadWriteOnce,
	}}
	if v.record != nil {
		if v.record.use(u.Path) >= 0 {
			return
		}
		if v.record.Block != block {
			return
		}
		copied := *v.record
		next = &copied
	}
	stage := m.layout.stage(&Volume{Driver: d.Driver, Handle: d.Handle, Name: u.Name, Block: block})
	if next.Stage == "" && m.staged(stage, block) {
		next.Stage = stage
	}
	next.Uses = append(slices.Clip(next.Uses), u)
	m.log.Warn("record of a volume was lost, and is made again", "driver", d.Driver, "handle", d.Handle, "uid", u.UID)
	if err := m.keep(v, next); err != nil {
		// on a full disk: what is to be undone is known as long as this process lives
		m.damaged[m.journal.path(id, recordSuffix)] = err.Error()
		v.record = next
	}
	m.entries[id] = v
}

func globEscape(s string) string {
	out := make([]byte, 0, len(s))
	for i := range len(s) {
		if s[i] == '*' || s[i] == '?' || s[i] == '[' || s[i] == '\\' {
			out = append(out, '\\')
		}
		out = append(out, s[i])
	}
	return string(out)
}
