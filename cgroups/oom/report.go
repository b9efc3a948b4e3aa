package oom

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/berth-node/berth/cgroups"
)

// Source is who has told of a kill, and so which of its figures there are.
type Source string

// The sources, from the best to the poorest.
const (
	FromLog    Source = "kernel log"       // all of it
	FromCounts Source = "group's counters" // that there was one, and in which group
	FromStatus Source = "container status" // that the container ended by one
)

// Report is what is kept of a kill in a container, or of several by one want of memory.
type Report struct {
	Source Source `json:"source"`
	// Kill is the process that was chosen. Without the log it has the time at which it was seen, and the group alone.
	Kill Kill `json:"kill"`
	// Count is how many processes were killed, and Others the first of those beside the one chosen.
	Count  int    `json:"count"`
	Others []Kill `json:"others,omitempty"`
	// Before is how many were killed in the container earlier.
	Before int `json:"before,omitempty"`

	Namespace   string `json:"namespace,omitempty"`
	Pod         string `json:"pod,omitempty"` // "": it was gone when the kill was seen
	UID         string `json:"uid,omitempty"`
	Container   string `json:"container,omitempty"`
	ContainerID string `json:"containerID,omitempty"`
	LimitName   string `json:"limitName,omitempty"` // the group whose limit it was, in words

	// Groups are the figures that the agent has read when it saw the kill: of the container, its pod and the group
	// whose limit it was, those that were there still.
	Groups []Figures `json:"groups,omitempty"`
	// Node is what the whole node had left then.
	Node *NodeFigures `json:"node,omitempty"`
	// After is what became of the container; nil: that is not known yet.
	After *After `json:"after,omitempty"`
}

// NodeFigures are of the machine, a moment after a kill.
type NodeFigures struct {
	Time      time.Time `json:"time"`
	Available int64     `json:"availableBytes"`
	// Pressure is how long tasks of the machine waited for memory; nil: the kernel does not tell.
	Pressure *cgroups.Pressure `json:"memoryPressure,omitempty"`
}

// After is what became of a container after one of its processes was killed.
type After struct {
	State    State     `json:"state"`
	Time     time.Time `json:"time"` // when that was seen
	ExitCode int32     `json:"exitCode,omitempty"`
	Reason   string    `json:"reason,omitempty"`
}

// State is one of a container.
type State string

// What a container does after a kill.
const (
	Runs  State = "runs"  // without the process
	Ended State = "ended" // all of it
	Gone  State = "gone"  // its pod is not known any more
)

// Describe tells of a kill in words, in one line.
func (r *Report) Describe() string {
	more := ""
	if r.Count > 1 {
		more = fmt.Sprintf("; %d processes were killed in all", r.Count)
	}
	switch r.Source {
	case FromLog:
		return r.Kill.Describe(r.LimitName) + more
	case FromStatus:
		return "it was ended for want of memory, as its status says"
	}
	out := "a process was killed for want of memory, as the counters of its group say" + more
	if len(r.Groups) > 0 {
		g := &r.Groups[0]
		out += "; a moment later it used " + mib(int64(g.Usage))
		if g.Limit > 0 {
			out += " of its limit of " + mib(int64(g.Limit))
		}
		if g.Peak > 0 {
			out += ", " + mib(int64(g.Peak)) + " at most"
		}
	}
	return out
}

// Describe says what became of the container.
func (a *After) Describe() string {
	switch {
	case a == nil:
		return "that is not known yet"
	case a.State == Runs:
		return "only a child was killed: the container runs on without it"
	case a.State == Ended:
		reason := a.Reason
		if reason == "" {
			reason = "without a reason"
		}
		return fmt.Sprintf("the container ended, exit code %d, %s", a.ExitCode, reason)
	}
	return "the pod was gone before that was seen"
}

// Version is that of the file of reports, the latest that [Decode] reads.
const Version = 2

// maxFile is more than any file of ours has.
const maxFile = 32 << 20

// Book is what is kept of kills over a restart.
type Book struct {
	// Boot and Seq are the last record of the kernel's log that was read: what comes before it was told.
	Boot    string
	Seq     uint64
	Reports []Report
}

// bookFile is a Book as it is written.
type bookFile struct {
	Version int      `json:"version"`
	Boot    string   `json:"boot,omitempty"`
	Seq     uint64   `json:"seq,omitempty"`
	Kills   []Kill   `json:"kills,omitempty"` // of the first version
	Reports []Report `json:"reports,omitempty"`
}

// Encode is the content of a file of reports.
func (b *Book) Encode() ([]byte, error) {
	return json.Marshal(bookFile{Version: Version, Boot: b.Boot, Seq: b.Seq, Reports: b.Reports})
}

// Decode reads what [Book.Encode] has made, or the first version, which had kills alone.
func Decode(data []byte) (*Book, error) {
	var in bookFile
	if err := json.Unmarshal(data, &in); err != nil {
		return nil, err
	}
	switch in.Version {
	case 1:
		b := &Book{Reports: make([]Report, 0, len(in.Kills))}
		for _, k := range in.Kills {
			b.Reports = append(b.Reports, Report{Source: FromLog, Kill: k, Count: 1})
		}
		return b, nil
	case Version:
		return &Book{in.Boot, in.Seq, in.Reports}, nil
	}
	return nil, fmt.Errorf("it has version %d, this berth reads up to %d", in.Version, Version)
}

// Load reads a file of reports for who only looks at them; without the file the error is [fs.ErrNotExist].
func Load(file string) ([]Report, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("read kills: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = errors.New("it is too large")
	}
	var b *Book
	if err == nil {
		b, err = Decode(data)
	}
	if err != nil {
		return nil, fmt.Errorf("read kills of %s: %w", file, err)
	}
	return b.Reports, nil
}

// Kills are all that reports tell of, of those that the log had told of.
func Kills(reports []Report) []Kill {
	var out []Kill
	for i := range reports {
		if r := &reports[i]; r.Source == FromLog {
			out = append(append(out, r.Kill), r.Others...)
		}
	}
	return out
}
