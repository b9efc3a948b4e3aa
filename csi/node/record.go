package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/csi"
	"github.com/berth-node/berth/internal/atomicfile"
	"github.com/berth-node/berth/internal/redo"
	"github.com/berth-node/berth/internal/sealed"
)

// recordVersion is of the format of records.
const recordVersion = 1

// record is what is to be undone of a volume, and by which call. It is never changed, but replaced.
type record struct {
	Version int `json:"version"`
	volume
	Stage  string     `json:"stage,omitempty"`        // where NodeUnstageVolume is due
	Attach string     `json:"attach,omitempty"`       // the node's ID that ControllerUnpublishVolume is due for
	Secret *SecretRef `json:"attachSecret,omitempty"` // whose content that call has
	Uses   []use      `json:"uses,omitempty"`         // for each of which NodeUnpublishVolume is due
	Expand *expansion `json:"expand,omitempty"`       // NodeExpandVolume is due
}

// volume is what is kept of a volume. Neither secrets nor attributes, which may have the tokens of a pod.
type volume struct {
	Driver    string     `json:"driver"`
	Handle    string     `json:"handle"`
	Name      string     `json:"name"`
	Ephemeral bool       `json:"ephemeral,omitempty"`
	Block     bool       `json:"block,omitempty"`
	Mode      AccessMode `json:"accessMode,omitempty"`
	FSType    string     `json:"fsType,omitempty"`
	Flags     []string   `json:"mountFlags,omitempty"`
	Group     string     `json:"group,omitempty"` // that the driver was given
}

type use struct {
	UID       string `json:"uid"`
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Account   string `json:"serviceAccount,omitempty"`
	Dir       string `json:"podDir"`
	Name      string `json:"name"`
	Path      string `json:"path"`
	ReadOnly  bool   `json:"readOnly,omitempty"`
	Group     bool   `json:"group,omitempty"`
	Awaits    bool   `json:"awaitsExpansion,omitempty"` // the pod does not get what is published before it is expanded
}

type expansion struct {
	Bytes int64 `json:"bytes"`
	Limit int64 `json:"limit,omitempty"`
	Held  bool  `json:"held,omitempty"` // it is due no more when no pod has the volume
}

func (e *expansion) is(o *expansion) bool {
	return e == o || e != nil && o != nil && *e == *o
}

func (r *record) use(path string) int {
	return slices.IndexFunc(r.Uses, func(u use) bool { return u.Path == path })
}

// awaits says whether a pod does not get what is published to it before it is expanded.
func (r *record) awaits(path string) bool {
	if r == nil || r.Expand == nil {
		return false
	}
	i := r.use(path)
	return i >= 0 && r.Uses[i].Awaits
}

// let is the record with nobody left who awaits an expansion.
func (r *record) let() *record {
	out := *r
	out.Uses = slices.Clone(r.Uses)
	for i := range out.Uses {
		out.Uses[i].Awaits = false
	}
	return &out
}

// without is the record without a use.
func (r *record) without(path string) *record {
	out := *r
	out.Uses = slices.DeleteFunc(slices.Clone(r.Uses), func(u use) bool { return u.Path == path })
	return &out
}

// note is what is known to be done of a record, while the machine has the boot ID. It is never changed, but replaced.
type note struct {
	Boot      string            `json:"boot"`
	Attached  bool              `json:"attached,omitempty"`
	Context   map[string]string `json:"publishContext,omitempty"` // what the controller has said about it
	Staged    *done             `json:"staged,omitempty"`
	Doubted   bool              `json:"doubted,omitempty"`   // it is staged once more before it is published again
	Published map[string]done   `json:"published,omitempty"` // by path
	Size      int64             `json:"size,omitempty"`
}

// done is what is staged, or published to a pod.
type done struct {
	Mount bool `json:"mount,omitempty"` // something is mounted there: not every driver does
}

func (n *note) clone() *note {
	out := *n
	out.Published = maps.Clone(n.Published)
	if out.Published == nil {
		out.Published = map[string]done{}
	}
	return &out
}

func (n *note) published(path string) bool {
	_, ok := n.Published[path]
	return ok
}

const (
	recordSuffix = ".json"
	noteSuffix   = ".note"
	badSuffix    = ".bad"
	// maxRecord is how much of a file is read, in bytes.
	maxRecord = 4 << 20
)

// journal has the files of records and notes.
type journal struct {
	dir     string
	records *redo.Log
}

func openJournal(dir, boot string) (journal, error) {
	l, err := redo.Open(dir, boot)
	return journal{dir, l}, err
}

func (j journal) path(key, suffix string) string { return filepath.Join(j.dir, key+suffix) }

// keep has a record be on the disk when it returns.
func (j journal) keep(key string, r *record) error {
	data, err := json.Marshal(r)
	if err == nil {
		err = j.records.Write(key+recordSuffix, sealed.Seal(data))
	}
	if err != nil {
		return fmt.Errorf("record volume: %w", err)
	}
	return nil
}

// mark writes a note. It is not synced: a loss of power makes it void in any case. It is written over the one before:
// one that makes no sense since the agent was killed at that says nothing, and all is done once more.
func (j journal) mark(key string, n *note) error {
	data, err := json.Marshal(n)
	if err == nil {
		err = atomicfile.Over(j.path(key, noteSuffix), data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("note what is done of volume: %w", err)
	}
	return nil
}

// forget removes a record, and then its note, which says nothing without it. It is not synced: what comes back after a
// loss of power is undone once more.
func (j journal) forget(key string) error {
	err := j.records.Remove(key + recordSuffix)
	if err == nil {
		err = os.Remove(j.path(key, noteSuffix))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove record of volume: %w", err)
	}
	return nil
}

// readBounded reads a file of ours that anything may be in.
func readBounded(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil {
		return nil, err
	} else if !st.Mode().IsRegular() {
		return nil, errors.New("it is no file")
	}
	data, err := io.ReadAll(io.LimitReader(f, maxRecord+1))
	if err == nil && len(data) > maxRecord {
		err = fmt.Errorf("it has more than %d bytes", maxRecord)
	}
	return data, err
}

var errLater = errors.New("it was written by a later version")

// decode reads a record, and trusts nothing that becomes a path.
func decode(data []byte, l layout) (*record, error) {
	r := &record{}
	var head struct{ Version int }
	if err := errors.Join(sealed.Check(data), json.Unmarshal(data, &head)); err != nil {
		return nil, err
	}
	if head.Version > recordVersion {
		return nil, fmt.Errorf("%w (format %d, this is %d)", errLater, head.Version, recordVersion)
	}
	if err := json.Unmarshal(data, r); err != nil {
		return nil, err
	}
	if head.Version < 1 {
		return nil, errors.New("it has no version")
	}
	if err := csi.CheckName(r.Driver); err != nil {
		return nil, err
	}
	if !isHandle(r.Handle) || !isName(r.Name) {
		return nil, errors.New("it names no volume")
	}
	if stage, ours := l.ours(r.Stage); r.Stage != "" && (!ours || !stage || filepath.Clean(r.Stage) != r.Stage) {
		return nil, fmt.Errorf("it has the staging path %q", r.Stage)
	}
	seen := map[string]bool{}
	for _, u := range r.Uses {
		switch {
		case !isName(u.UID) || !isName(u.Name) || u.Dir != filepath.Join(l.root, "pods", u.UID):
			return nil, fmt.Errorf("it has the pod %q in %q", u.UID, u.Dir)
		case seen[u.Path] || u.Path != l.target(r.Block, u.Dir, u.UID, u.Name):
			return nil, fmt.Errorf("it has the path %q of a pod", u.Path)
		}
		seen[u.Path] = true
	}
	if r.Expand != nil && r.Expand.Bytes <= 0 {
		return nil, errors.New("it has an expansion to nothing")
	}
	return r, nil
}

// readNote returns what is known to be done; of a note that says nothing, or was written before the machine was
// started, that is nothing.
func (j journal) readNote(key, boot string) *note {
	data, err := readBounded(j.path(key, noteSuffix))
	n := &note{}
	if err != nil || json.Unmarshal(data, n) != nil || n.Boot != boot {
		return &note{Boot: boot}
	}
	return n
}
