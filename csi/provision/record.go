package provision

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
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/csi"
	"github.com/berth-node/berth/internal/atomicfile"
	"github.com/berth-node/berth/internal/sealed"
)

const (
	recordVersion = 2
	groupVersion  = 2 // that knows of group snapshots; all else is of the first, which an earlier agent reads
	recordSuffix  = ".json"
	badSuffix     = ".bad"
	maxRecord     = 1 << 20 // bytes
)

// record is a volume or snapshot that was asked for. It is never changed, but replaced.
type record struct {
	Version int   `json:"version"`
	Kind    Kind  `json:"kind"`
	Claim   Claim `json:"claim"` // that the driver was called with, but for what may change of it later
	// Asked says that the driver may have it, or may still make it.
	Asked   bool    `json:"asked,omitempty"`
	Secrets Secrets `json:"secrets,omitzero"`
	// Parameters and FSType are those of the class, parted.
	Parameters map[string]string `json:"parameters,omitempty"`
	FSType     string            `json:"fsType,omitempty"`

	Handle  string            `json:"handle,omitempty"`
	Bytes   int64             `json:"bytes,omitempty"`
	Context map[string]string `json:"context,omitempty"`
	Created time.Time         `json:"created,omitzero"`
	Ready   bool              `json:"ready,omitempty"`
	// Expand is the size that the controller was asked for, and NodeExpand the one that the node is to have.
	Expand     int64 `json:"expand,omitempty"`
	NodeExpand int64 `json:"nodeExpand,omitempty"`
	// Changed is by which attributes a volume was changed, and Members are those of a group snapshot: which volumes it
	// is of is written before the driver is called, and their snapshots with its answer.
	Changed changed  `json:"changed,omitzero"`
	Members []Member `json:"members,omitempty"`

	Missing bool `json:"missing,omitempty"` // the claim is gone
	// For is how long it was seen to be: no clock that is set, and no time without an agent, counts.
	For      time.Duration `json:"missingFor,omitempty"`
	Kept     bool          `json:"kept,omitempty"` // somebody has said that it is to stay
	Deleting bool          `json:"deleting,omitempty"`
}

func (r *record) name() string { return r.Claim.name(r.Kind) }

// made says that there is what was asked for. A snapshot need not be ready yet.
func (r *record) made() bool {
	switch {
	case r.Handle == "":
		return false
	case r.Kind == Group:
		return len(r.Members) > 0 && !slices.ContainsFunc(r.Members, func(m Member) bool { return m.Handle == "" })
	}
	return r.Ready || r.Kind == Snapshot
}

// handles are those of all that was made.
func (r *record) handles() []Handle {
	driver := r.Claim.Class.Driver
	out := []Handle{{r.Kind, driver, r.Handle}}
	for _, m := range r.Members {
		out = append(out, Handle{Snapshot, driver, m.Handle})
	}
	return slices.DeleteFunc(out, func(h Handle) bool { return h.Handle == "" })
}

// stays says that nothing is deleted though the claim is gone.
func (r *record) stays() bool { return r.Kept || r.Claim.Class.Retain }

// journal has the files of records.
type journal struct{ dir string }

func (j journal) path(name string) string { return filepath.Join(j.dir, name+recordSuffix) }

// keep has a record be on the disk when it returns.
func (j journal) keep(r *record) error {
	data, err := json.Marshal(r)
	data = sealed.Seal(data)
	if err == nil && len(data) > maxRecord { // it could not be read again
		err = fmt.Errorf("it has more than %d bytes", maxRecord)
	}
	if err == nil {
		err = atomicfile.WriteSyncedIn(j.path(r.name()), data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("record %s: %w", r.Kind, err)
	}
	return nil
}

func (j journal) forget(name string) error {
	if err := os.Remove(j.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove record: %w", err)
	}
	return nil
}

// load reads all records; those that make no sense are put aside, and named in problems. Those that make sense to
// others, or on another day, stay, and nothing is done by their names: why is in blocked.
func (j journal) load() (all map[string]*record, problems []string, blocked map[string]string, err error) {
	files, err := os.ReadDir(j.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // it is made with the first record
		return nil, nil, nil, err
	}
	all, blocked = map[string]*record{}, map[string]string{}
	for _, f := range files {
		path := filepath.Join(j.dir, f.Name())
		name, ours := strings.CutSuffix(f.Name(), recordSuffix)
		switch {
		case strings.HasSuffix(f.Name(), atomicfile.Part): // of a writer that was killed
			_ = os.Remove(path)
		case strings.HasSuffix(f.Name(), badSuffix):
			problems = append(problems, path+": it could not be read at an earlier start")
		case ours:
			r, err := readRecord(path, name)
			if err == nil {
				all[name] = r
				continue
			}
			why := fmt.Sprintf("%s: %v", path, err)
			problems = append(problems, why)
			if _, unread := errors.AsType[*fs.PathError](err); unread || errors.Is(err, errLater) ||
				os.Rename(path, strings.TrimSuffix(path, recordSuffix)+badSuffix) != nil {
				blocked[name] = why
			}
		}
	}
	return all, problems, blocked, nil
}

// Recorded is what the records in a directory tell of, as far as they can be read.
func Recorded(dir string) []State {
	all, _, _, err := journal{dir}.load()
	if err != nil {
		return nil
	}
	var out []State
	for _, name := range slices.Sorted(maps.Keys(all)) {
		r := all[name]
		out = append(out, State{Kind: r.Kind, Name: name, Claim: r.Claim, Handle: r.Handle, Bytes: r.Bytes, Created: r.Created})
	}
	return out
}

var errLater = errors.New("it was written by a later version")

func readRecord(path, name string) (*record, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxRecord+1))
	if err != nil {
		return nil, err
	}
	return decode(data, name)
}

// decode reads a record, which is called name.
func decode(data []byte, name string) (*record, error) {
	if len(data) > maxRecord {
		return nil, fmt.Errorf("it has more than %d bytes", maxRecord)
	}
	r := &record{}
	if err := json.Unmarshal(data, r); err != nil {
		return nil, err
	}
	changed := sealed.Check(data)
	switch {
	case changed != nil:
		return nil, changed
	case r.Version > recordVersion:
		return nil, fmt.Errorf("%w (format %d)", errLater, r.Version)
	case r.Version < 1:
		return nil, errors.New("it has no version")
	case r.Kind != Volume && r.Kind != Snapshot && r.Kind != Group:
		return nil, fmt.Errorf("it is of a %q", r.Kind)
	case r.name() != name:
		return nil, errors.New("it is of another one than its name says")
	case r.For < 0 || r.Bytes < 0 || r.Expand < 0 || r.NodeExpand < 0:
		return nil, errors.New("it has a figure below nothing")
	}
	return r, csi.CheckName(r.Claim.Class.Driver)
}
